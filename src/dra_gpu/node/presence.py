"""Who still has the state directory: a lock that instances share as long as they live, and that a dead one lets go of.

An instance that ends takes its sockets back first, and still has the journal open for a moment: it would put the file
back if somebody removed it meanwhile.
"""

import fcntl
import os
from pathlib import Path


class Presence:
    """This instance's share of the lock.

    Args:
        state_dir: the directory, whose `locks` is there.

    Raises:
        OSError: the lock's file cannot be made.
    """

    def __init__(self, state_dir: Path) -> None:
        self._descriptor = os.open(_path(state_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """Give it back: nothing in the directory is touched any more."""
        os.close(self._descriptor)


def somebody_present(state_dir: Path) -> bool:
    """Tell whether an instance has the directory; whoever asks must not have a share itself.

    Raises:
        OSError: the lock's file cannot be made.
    """
    descriptor = os.open(_path(state_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _path(state_dir: Path) -> Path:
    return state_dir / "locks" / "instances.lock"
