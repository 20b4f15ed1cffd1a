"""The controller and the webhook as host processes, each with a token of its own account: what their pods run."""

import json
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.processes import Process

from tests.e2e.harness.accounts import account_kubeconfig
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.waiting import PATIENCE, wait_until

SHIPPED = (sys.executable, "-m", "dra_gpu")


@dataclass(frozen=True)
class Component:
    """A process that runs, and what it logs."""

    process: Process

    def wait_logged(self, words: str) -> dict[str, Any]:
        """Wait until a line of the log has these words; return what stands in that line."""

        def told() -> bool:
            assert self.process.running() is not None, f"it ended; its log ends with:\n{self.process.tail()}"
            return bool(self._lines(words))

        try:
            wait_until(f"{self.process.name} says {words!r}", told, every=0.05)
        except TimeoutError as error:
            raise AssertionError(f"{error}; its log ends with:\n{self.process.tail()}") from error
        found: dict[str, Any] = json.loads(self._lines(words)[0])
        return found

    def _lines(self, words: str) -> list[str]:
        """The whole lines of the log with some words."""
        return [line for line in self.process.log.read_text().split("\n")[:-1] if words in line]


@contextmanager
def component(
    cluster: Cluster,
    command: str,
    *arguments: str,
    program: Sequence[str] = SHIPPED,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Component]:
    """Run `dra-gpu COMMAND` with the rights of its account for the length of the block.

    `program` replaces `dra-gpu`: the same with other constants, say.
    """
    name = f"{command}-{uuid.uuid4().hex[:8]}"
    directory = cluster.layout.state / "components"
    directory.mkdir(exist_ok=True)
    kubeconfig = account_kubeconfig(cluster, f"dra-gpu-{command}", directory / f"{name}.kubeconfig")
    process = cluster.layout.process(name)
    process.start([*program, command, f"--kubeconfig={kubeconfig}", *arguments], environment=environment)
    try:
        yield Component(process)
    finally:
        process.stop(seconds=PATIENCE)
        Path(kubeconfig).unlink()
