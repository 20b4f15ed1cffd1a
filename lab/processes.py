"""Starts long-lived processes and stops exactly those again, from any process, also after a crash of the starter.

Each process records itself before it becomes the program: a small shell writes its own /proc/self/stat line into a
file, enters its cgroup and execs. So there is no moment in which it runs unrecorded. The record's pid counts only
together with the start time in it; a pid that was given to somebody else since is left alone (Source:
proc_pid_stat(5), field 22).
"""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

_STARTED_WITHIN_SECONDS = 30.0
_START_TIME_FIELD = 22
_RECORD_AND_EXEC = (
    'record="$1"; procs="$2"; shift 2; '
    'if [ -n "$procs" ]; then echo $$ > "$procs" || exit 125; fi; '
    'read -r stat < "/proc/$$/stat" && echo "$stat" > "$record.new" && mv "$record.new" "$record" && exec "$@"'
)


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same pid. `started` is in clock ticks since boot."""

    pid: int
    started: int


def parse_stat(line: str) -> Identity:
    """Read pid and start time out of a /proc/<pid>/stat line; the program's name in it may hold blanks and brackets."""
    head, _, tail = line.rpartition(")")
    # `tail` begins with field 3.
    return Identity(pid=int(head.split("(", 1)[0]), started=int(tail.split()[_START_TIME_FIELD - 3]))


@dataclass(frozen=True)
class Process:
    """A process by its record file; `name` is for messages."""

    name: str
    record: Path
    log: Path

    def identity(self) -> Identity | None:
        """Return who was recorded, or None when nothing was."""
        try:
            return parse_stat(self.record.read_text())
        except (FileNotFoundError, ValueError, IndexError):
            return None

    def running(self) -> Identity | None:
        """Return the recorded process if it still runs (a zombie does not)."""
        identity = self.identity()
        if identity is None:
            return None
        try:
            line = Path(f"/proc/{identity.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state = line.rpartition(")")[2].split()[0]
        return identity if parse_stat(line) == identity and state not in "ZX" else None

    def start(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        procs_file: Path | None = None,
    ) -> Identity:
        """Start `command` in a session of its own, appending to the log; `procs_file` is the cgroup.procs it enters.

        Raises:
            LabError: it did not get as far as being recorded; the text has the last lines of its log.
        """
        for directory in (self.record.parent, self.log.parent):
            directory.mkdir(parents=True, exist_ok=True)
        self.record.unlink(missing_ok=True)
        with self.log.open("ab") as output:
            # --fork: the process belongs to init at once, so that it outlives the starter and leaves it no zombie.
            subprocess.run(
                [
                    "setsid",
                    "--fork",
                    "/bin/sh",
                    "-c",
                    _RECORD_AND_EXEC,
                    "sh",
                    self.record,
                    str(procs_file or ""),
                    *command,
                ],
                check=True,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_STARTED_WITHIN_SECONDS,
            )
        deadline = time.monotonic() + _STARTED_WITHIN_SECONDS
        while (identity := self.identity()) is None:
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} did not start; its log {self.log} ends with:\n{self.tail()}")
            time.sleep(0.005)
        return identity

    def stop(self, sig: signal.Signals = signal.SIGTERM, *, seconds: float = 10.0) -> bool:
        """Send `sig`, wait up to `seconds`, then SIGKILL; return whether it ended by `sig` itself (or did not run)."""
        ended = self.signal_and_wait(sig, seconds)
        if not ended:
            self.signal_and_wait(signal.SIGKILL, 10.0)
        self.record.unlink(missing_ok=True)
        return ended

    def signal_and_wait(self, sig: signal.Signals, seconds: float) -> bool:
        """Send `sig` and wait; return whether the process is gone after at most `seconds`."""
        identity = self.identity()
        if identity is None:
            return True
        try:
            descriptor = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return True
        try:
            # Only after the descriptor is open can the pid not change hands any more.
            if self.running() is None:
                return True
            signal.pidfd_send_signal(descriptor, sig)
            return bool(select.select([descriptor], [], [], seconds)[0])
        except ProcessLookupError:
            return True
        finally:
            os.close(descriptor)

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"


def listens(path: Path) -> bool:
    """Return whether somebody takes connections on the unix socket `path`."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
    except OSError:
        return False
    return True
