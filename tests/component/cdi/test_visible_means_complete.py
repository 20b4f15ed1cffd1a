"""A reader of the directory never meets a half file, whatever happens to the writers."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra_gpu.cdi.store import SpecStore

VENDOR = "k8s.gpu.nvidia.com"

#: Writes claims for ever, and says so once every twenty.
WRITER = f"""
import sys
from pathlib import Path
from dra_gpu.cdi.spec import ContainerEdits, Device, Spec
from dra_gpu.cdi.store import SpecStore

store = SpecStore(Path(sys.argv[1]), {VENDOR!r})
count = 0
while True:
    uid = f"{{sys.argv[2]}}-{{count % 25}}"
    edits = ContainerEdits(env=tuple(f"V{{index}}={{count}}" for index in range(2000)))
    store.write(uid, Spec("", "{VENDOR}/claim", (Device(f"{{uid}}-gpu-0", edits),)))
    count += 1
    if count % 20 == 0:
        print(count, flush=True)
"""


@dataclass
class Reader:
    """Parses every file that a container runtime would parse, as soon as it appears and again and again."""

    directory: Path
    parsed: int = 0
    broken: list[str] = field(default_factory=list)

    def look(self) -> None:
        for path in self.directory.iterdir():
            if path.suffix not in {".json", ".yaml"}:
                continue
            try:
                spec = json.loads(path.read_bytes())
                assert spec["devices"][0]["name"].endswith("-gpu-0")
            except FileNotFoundError:
                continue
            except (ValueError, KeyError) as error:
                self.broken.append(f"{path.name}: {error}")
            self.parsed += 1


@contextmanager
def reading(directory: Path) -> Iterator[Reader]:
    reader = Reader(directory)
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(0.0005):
            reader.look()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield reader
    finally:
        stop.set()
        thread.join()


@pytest.mark.case("C47")
def test_five_hundred_writes_and_a_kill_at_any_moment_never_show_half_a_file(tmp_path: Path) -> None:
    directory = tmp_path / "cdi"
    directory.mkdir()
    written = 0

    with reading(directory) as reader:
        for life in range(5):
            with subprocess.Popen(
                [sys.executable, "-c", WRITER, directory, f"claim-{life}"], stdout=subprocess.PIPE, text=True
            ) as writer:
                assert writer.stdout is not None
                for _ in range(5):
                    written = int(writer.stdout.readline()) + life * 100
                writer.send_signal(signal.SIGKILL)

    assert written == 500
    assert reader.parsed > 0
    assert reader.broken == []
    store = SpecStore(directory, VENDOR)
    store.clean_temporaries()
    assert [path.name for path in directory.iterdir() if path.suffix != ".json"] == []
    assert all(store.read(uid) is not None for uid in store.claim_uids())
