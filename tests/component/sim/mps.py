"""An MPS control daemon of a simulated node, started and spoken to as an administrator does it."""

import os
import select
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_gpu_sim.client import CudaClient
from dra_gpu_sim.node import SimulatedNode

LIMITS = ("--pinned-memory-limit=10G", "--active-thread-percentage=20")


@dataclass
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Mps:
    """The daemon of one pipe directory, if it runs."""

    node: SimulatedNode
    base: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def pipe(self) -> Path:
        """The pipe directory."""
        return self.base / "pipe"

    @property
    def pid(self) -> int:
        """The daemon's pid, from its file."""
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def run(self, *arguments: str, stdin: str = "", user: int | None = None, **environment: str) -> Result:
        """Run nvidia-cuda-mps-control in this pipe directory."""
        variables: Mapping[str, str] = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.base / "log"),
            **self.environment,
            **environment,
        }
        done = subprocess.run(
            [self.node.mps_control, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=variables,
            check=False,
            timeout=60,
            user=user,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, **environment: str) -> "Mps":
        """Start the daemon in the background."""
        result = self.run(*arguments, "-d", **environment)
        assert result.code == 0, result
        return self

    def tell(self, *commands: str) -> list[str]:
        """Give commands of protocol 2 and return the lines of their answers."""
        result = self.run(stdin="".join(f"{command}\n" for command in commands))
        assert result.code == 0, result
        return result.out.splitlines()

    def ask(self, *words: str) -> str:
        """Give a command of protocol 3 that must succeed."""
        result = self.run(*words)
        assert result.code == 0, result
        return result.out.strip()

    def rows(self, module: str) -> list[list[str]]:
        """A list of protocol 3."""
        return [line.split(",") for line in self.ask(module, "list", "--format=csv,noheader").splitlines()]

    def share(self, name: str = "s_a", *limits: str, server: str = "gpu") -> Path:
        """A namespace with limits, and its pipe directory."""
        if not any(row[0] == server for row in self.rows("server")):
            self.ask("server", "create", server)
        self.ask("namespace", "create", name, f"--server={server}")
        if limits:
            self.ask("namespace", "set", name, f"--server={server}", *limits)
        return Path(self.ask("namespace", "get", name, server, "pipe-directory"))

    def client(self, *commands: str, pipe: Path | None = None, **options: Any) -> CudaClient:
        """A client of this daemon."""
        return self.node.client(*commands, pipe=pipe or self.pipe, **options)

    def kill(self) -> None:
        """Kill the daemon if it runs, and see it end."""
        try:
            pid = self.pid
            daemon = os.pidfd_open(pid)
        except (FileNotFoundError, ProcessLookupError):
            return
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if not command.startswith(bytes(self.node.mps_control)):
            os.close(daemon)  # it has ended, or the number is that of another pid namespace
            return
        signal.pidfd_send_signal(daemon, signal.SIGKILL)
        wait_for_end(daemon)


def wait_for_end(pidfd: int) -> None:
    """Wait for a process that need not be a child of ours, and close its descriptor."""
    ended, _, _ = select.select([pidfd], [], [], 60)
    os.close(pidfd)
    assert ended


def is_error(line: str, number: int) -> bool:
    """Whether an answer is the CUDA error of that number."""
    return line.startswith("CUDA_ERROR_") and line.endswith(f" {number}")
