"""The journal on a disk that is full, and in a file that may not be read: with the kernel's own errors."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dra_gpu.claims.journal import FILE_NAME, Journal

ROOT = Path(__file__).parents[3]
#: Root that obeys the modes of its own files. Another user could not even read a checkout below /root.
MODES_APPLY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ("env",)


def can(*command: str) -> bool:
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )


@pytest.mark.case("C32")
@pytest.mark.skipif(not can("unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"), reason="may not mount")
def test_a_full_disk_refuses_claims_with_its_reason_and_loses_nothing(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    script = 'mount -t tmpfs -o size=192k,mode=700 none "$0" && exec "$1" -m tests.component.claims.full_disk "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, state, sys.executable, tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "ENOSPC" in found.pop("prepare on a full disk")
    assert "ENOSPC" in found.pop("unprepare on a full disk")
    assert found == {
        "held": "",
        "gpu-0 after it": "Default",
        "files after it": ["u2"],
        "records after it": ["u2"],
        "gpu-1 after it": "Default",
        "prepare with room": "",
        "unprepare with room": "",
        "records at the end": ["u1"],
    }


@pytest.mark.case("C19")
@pytest.mark.skipif(not can(*MODES_APPLY, "true"), reason="may not give up capabilities")
def test_a_file_of_mode_0000_ends_the_start_with_its_reason_and_stays(tmp_path):
    async def write() -> None:
        journal = Journal.open(tmp_path, boot_id="b", release="0.1.0")
        await journal.remember_names("b", [])
        await journal.close()

    asyncio.run(write())
    content = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).chmod(0)
    program = (
        "import pathlib, sys; from dra_gpu.claims.journal import Journal; "
        "Journal.open(pathlib.Path(sys.argv[1]), boot_id='b', release='0.1.0')"
    )
    done = subprocess.run(
        [*MODES_APPLY, sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "JournalUnreadableError" in done.stderr
    assert "Permission denied" in done.stderr
    (tmp_path / FILE_NAME).chmod(0o600)
    assert (tmp_path / FILE_NAME).read_bytes() == content
