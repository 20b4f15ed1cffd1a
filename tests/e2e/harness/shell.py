"""Runs commands of documents as they stand there.

What a document shows is compared with what a command prints, but for names that Kubernetes makes, UUIDs, and what
stands for anything (`…`): see tests/console.py.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.build import bin_dir

from tests.console import ROOT, Command
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.waiting import PATIENCE

#: What only looks may be repeated until it shows what the document does: a container's output comes when it comes.
LOOKS = {"describe", "get", "gpu", "history", "logs"}
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Shell:
    """A shell of somebody who has pasted what `make cluster` printed last, in a clone of the repository.

    Attributes:
        environment: of each command.
        instead: what stands in commands here in place of what documents have.
    """

    environment: dict[str, str]
    instead: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster, *programs: Path, instead: Mapping[str, str] | None = None) -> "Shell":
        """Return the shell of a cluster's administrator; `programs` are directories that come first in the PATH."""
        path = ":".join(map(str, [*programs, Path(sys.executable).parent, bin_dir(), os.environ["PATH"]]))
        environment = {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.layout.kubeconfig)}
        return cls(environment, dict(instead or {}))

    def does(self, command: Command) -> None:
        """Run a command of a document; raises AssertionError with what it printed unless that is what is shown."""
        text = command.text
        for theirs, ours in self.instead.items():
            text = text.replace(theirs, ours)
        until = time.monotonic() + (PATIENCE if command.words[1] in LOOKS else 0)
        while True:
            result = self._run(text)
            fine = result.returncode == 0 and command.prints(result.stdout)
            if fine or time.monotonic() > until:
                break
            time.sleep(_LOOK_SECONDS)
        shown = "\n".join(command.shown)
        assert fine, f"$ {text}\n{result.stdout}{result.stderr}\n-- the document shows:\n{shown}"

    def _run(self, text: str) -> subprocess.CompletedProcess[str]:
        line = ["bash", "-eu", "-o", "pipefail", "-c", text]
        limit = 10 * PATIENCE
        return subprocess.run(
            line, cwd=ROOT, env=self.environment, check=False, capture_output=True, text=True, timeout=limit
        )
