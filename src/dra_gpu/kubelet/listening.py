"""A listening Unix socket and the file that leads to it.

Promises: a socket somebody listens at is never taken away; a stale one is replaced; only the file that this process
made is ever removed. File mode 0600. Every call here blocks for a few system calls at most.
"""

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

_BACKLOG = 100  # connections waiting to be accepted; the kubelet makes one or two
_PROBE_SECONDS = 1.0  # a Unix connect is decided at once; this bounds a full backlog


class SocketBusyError(OSError):
    """The path is in use by somebody else; the message says by what and what to do."""


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells a file from a later one of the same name."""

    device: int
    inode: int


@dataclass(slots=True)
class ListeningSocket:
    """A bound, listening socket and the identity of its file."""

    path: Path
    sock: socket.socket
    identity: FileIdentity

    def in_place(self) -> bool:
        """Whether `path` still leads to this socket."""
        return identify(self.path) == self.identity

    def unlink(self) -> bool:
        """Remove the file if it is ours; whether it was."""
        if not self.in_place():
            return False
        self.path.unlink(missing_ok=True)
        return True


def listen_at(path: Path) -> ListeningSocket:
    """Bind and listen at `path`, making its directory and replacing a stale socket.

    Raises:
        SocketBusyError: another process listens there, or the file is no socket.
        OSError: the directory or the socket cannot be made (rights, space).
    """
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # On Linux the file gets the mode of the unbound socket: there is no moment in which it is open to others.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(str(path))
        # At once: the kubelet sees the file appear and dials it.
        sock.listen(_BACKLOG)
        identity = identify(path)
    except BaseException:
        sock.close()
        raise
    if identity is None:
        sock.close()
        raise SocketBusyError(
            errno.EADDRINUSE, f"socket {path} was removed while it was made: another process cleans up here"
        )
    return ListeningSocket(path, sock, identity)


def identify(path: Path) -> FileIdentity | None:
    """Identity of the file at `path`, None if there is none (or it cannot be reached)."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return FileIdentity(found.st_dev, found.st_ino)


def somebody_listens(path: Path) -> bool:
    """Whether a connection to the socket at `path` is taken, or would be."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (TimeoutError, BlockingIOError):
            return True  # its backlog is full: busy, but there
    return True


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketBusyError(errno.EEXIST, f"{path} exists and is no socket: remove it or use another directory")
    if somebody_listens(path):
        raise SocketBusyError(
            errno.EADDRINUSE,
            f"another process listens at {path}: stop it, or give each instance its pod UID so that both have sockets"
            " of their own",
        )
    path.unlink(missing_ok=True)
