"""`dra-gpu mps`: the first process of the pod. Starts the service, starts it again when it ends, collects orphans.

So small that it need not be replaced, for the pod's processes end with it. What survives what:

- The service ends, crashes or is killed: it is started again; daemons and their clients go on, and are taken over.
- A daemon dies: its clients with it, by the driver's own rules; the service starts it again with its shares.
- SIGTERM, as when the pod is deleted: the service finishes its calls and ends, then this process. Daemons are not told
  to quit. In a container the runtime then kills them, and their clients fail in their next CUDA call and must be
  started again; the GPUs stay exclusive, so that nobody takes a whole one meanwhile, until the next pod has started
  the daemons with the same shares. Outside of a container daemons and clients go on.

Source: prctl(2), PR_SET_CHILD_SUBREAPER: with hostPID this process is not PID 1, and orphans would go past it.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence

from dra_gpu.mps import linux

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0
_USAGE = 2  # argparse's exit status: starting again would end the same way
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def main(arguments: Sequence[str]) -> int:
    """Supervise the service until SIGTERM; returns the exit status."""
    command = [sys.executable, "-m", "dra_gpu", "mps", "serve", *arguments]
    if {"-h", "--help"} & {*arguments}:
        os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    linux.become_subreaper()
    pause = _FIRST_PAUSE_S
    while True:
        started = time.monotonic()
        child = os.posix_spawn(sys.executable, command, os.environ, setsigmask=())
        status, stopped = _wait_for(child)
        if stopped or status == _USAGE:
            return status
        if time.monotonic() - started >= _STEADY_S:
            pause = _FIRST_PAUSE_S
        _say("the MPS service ended and is started again; daemons and clients go on", status=status, pause=pause)
        if _stopped_within(pause):
            return 0
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def _wait_for(child: int) -> tuple[int, bool]:
    """Collect children until this one ends; its exit status, and whether it was asked to stop."""
    stopped = False
    while True:
        number = signal.sigwait(_SIGNALS)
        if number != signal.SIGCHLD:
            stopped = True
            os.kill(child, signal.SIGTERM)
        for pid, status in _ended():
            if pid == child:
                return os.waitstatus_to_exitcode(status), stopped


def _stopped_within(seconds: float) -> bool:
    """Wait, collecting orphans; whether a signal to stop came."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        received = signal.sigtimedwait(_SIGNALS, left)
        if received is not None and received.si_signo != signal.SIGCHLD:
            return True
        _ended()
    return False


def _ended() -> list[tuple[int, int]]:
    """Collect every child that has ended, orphans among them."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def _say(event: str, **facts: object) -> None:
    sys.stderr.write(json.dumps({"level": "error", "event": event, **facts}) + "\n")
