"""System calls that Python 3.11 has no name for. Source: prctl(2), unshare(2), mount(2), umount2(2)."""

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV = 0x2, 0x4
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Let orphans below this process become its children, as they become those of PID 1 (`prctl`)."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(signal_number: int) -> None:
    """Get a signal when the parent ends; one that has ended before is not noticed."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def own_mounts() -> None:
    """Give this process a mount namespace of its own, from which nothing reaches the others.

    Raises:
        PermissionError: it needs CAP_SYS_ADMIN.
    """
    _check(_libc.unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")


def bind(source: str, target: str) -> None:
    """Show `source` at `target` as well.

    Raises:
        OSError: either does not exist, or rights are missing.
    """
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND, None), f"mount {source} at {target}")


def tmpfs(target: str, options: str) -> None:
    """Mount an empty file system of its own in memory at `target`.

    Args:
        target: a directory.
        options: of tmpfs(5), such as `size=50%,mode=1777`.

    Raises:
        OSError: the directory does not exist, or rights are missing.
    """
    flags = _MS_NOSUID | _MS_NODEV
    done = _libc.mount(b"dra-gpu", os.fsencode(target), b"tmpfs", flags, options.encode())
    _check(done, f"mount a tmpfs at {target}")


def detach(path: str) -> None:
    """Take away what is mounted at `path`, also while it is in use.

    Raises:
        OSError: nothing is mounted there, or rights are missing.
    """
    _check(_libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW), f"umount {path}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
