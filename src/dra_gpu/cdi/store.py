"""The CDI specification files of claims: one file a claim, in the directory that the container runtime reads.

A file is complete whenever a reader sees it: it is written under a name that runtimes do not read and then renamed.
It is visible before `write` returns. A process killed on the way leaves at most a temporary file, which
`clean_temporaries` takes away; a temporary file that another process is writing right now is left alone.
Every method blocks for one or two system calls on a local directory.
"""

import errno
import fcntl
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from dra_gpu.cdi.spec import Spec, minimum_version
from dra_gpu.cdi.validation import validate

_CLAIM_UID = re.compile(r"[0-9A-Za-z-]{1,64}")
_VENDOR_PREFIX = re.compile(r"[A-Za-z](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_MODE = 0o600  # the runtime runs as root, nobody else needs the files
_ATTEMPTS = 3  # of a write whose temporary file another instance took for abandoned, in the instant before its lock

_REMEDIES = {
    errno.ENOSPC: "free space there, or give the driver another CDI directory; the claim is tried again",
    errno.EDQUOT: "raise the quota there; the claim is tried again",
    errno.EROFS: "mount the directory writable, or give the driver another CDI directory that the runtime reads too",
    errno.EACCES: "let the driver run as root, and check the directory's mode and security labels",
    errno.EPERM: "let the driver run as root, and check the directory's attributes and security labels",
    errno.ENOTDIR: "a part of the path is a file; give the driver a directory that the runtime reads",
    errno.EISDIR: "a directory stands in the place of the file; remove it",
}


class SpecStoreError(Exception):
    """A specification file could not be written, read or removed; the message names path, reason and remedy."""


class SpecStore:
    """The specification files of one driver in one directory.

    Two instances, also in two processes, may use the same directory: the last complete write of a claim stays.

    Args:
        directory: where the runtime looks (`/var/run/cdi`); made when absent. Links in it are followed at each call,
            so that `/var/run/cdi` and `/run/cdi` are one place.
        vendor_prefix: vendor part of the kind, such as `k8s.gpu.nvidia.com`; starts every file name.

    Raises:
        ValueError: the prefix cannot start a file name.
    """

    def __init__(self, directory: Path, vendor_prefix: str) -> None:
        if not _VENDOR_PREFIX.fullmatch(vendor_prefix):
            raise ValueError(f"CDI vendor {vendor_prefix!r} is not made of letters, digits, '.' and '-'")
        self._directory = directory
        self._stem = f"{vendor_prefix}-claim_"
        self._file_name = re.compile(rf"{re.escape(self._stem)}({_CLAIM_UID.pattern})\.json")
        self._temporary_name = re.compile(rf"\.{re.escape(self._stem)}{_CLAIM_UID.pattern}\.[0-9a-f]{{16}}\.tmp")

    def path(self, claim_uid: str) -> Path:
        """Return where the claim's file is or would be, without links.

        Raises:
            ValueError: the UID cannot be a part of a file name.
        """
        if not _CLAIM_UID.fullmatch(claim_uid):
            raise ValueError(f"claim UID {claim_uid!r} is not 1 to 64 letters, digits and dashes")
        try:
            directory = self._directory.resolve()
        except RuntimeError:  # links in a circle (an OSError from Python 3.13 on): whoever opens the file is told so
            directory = self._directory
        return directory / f"{self._stem}{claim_uid}.json"

    def write(self, claim_uid: str, spec: Spec) -> Path:
        """Write a claim's specification, declared with the lowest CDI version that covers it.

        A file that has this content already is left as it is: runtimes read the whole directory anew at each change.

        Returns:
            The file; it is complete and visible.

        Raises:
            InvalidSpecError: a runtime would refuse it, such as for a device without edits.
            SpecStoreError: the directory does not take it.
            ValueError: the UID cannot be a part of a file name.
        """
        path = self.path(claim_uid)
        validate(spec)
        content = msgspec.json.encode(msgspec.structs.replace(spec, cdi_version=minimum_version(spec)))
        try:
            if _content(path) == content:
                return path
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, content)
        except OSError as error:
            raise _failure("write", path, error) from error
        return path

    def read(self, claim_uid: str) -> Spec | None:
        """Return what stands in the claim's file; None when there is no file.

        Raises:
            SpecStoreError: the file cannot be read, or does not hold a specification.
            ValueError: the UID cannot be a part of a file name.
        """
        path = self.path(claim_uid)
        try:
            content = _content(path)
        except OSError as error:
            raise _failure("read", path, error) from error
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=Spec)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SpecStoreError(
                f"{path} does not hold a CDI specification ({error}). Something else wrote it; "
                "preparing the claim again writes it anew."
            ) from error

    def mark(self, claim_uid: str) -> tuple[int, int, int, int] | None:
        """Return what changes whenever the claim's file is replaced or written to; None when there is no file.

        One system call, quick enough for an event loop.

        Raises:
            ValueError: the UID cannot be a part of a file name.
        """
        try:
            found = self.path(claim_uid).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file; a file that is not there is as good.

        Raises:
            SpecStoreError: it is there and stays.
            ValueError: the UID cannot be a part of a file name.
        """
        path = self.path(claim_uid)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return  # something else stands in the directory's place: there is no file to remove
        except OSError as error:
            if error.errno == errno.ELOOP:
                return  # the same, with links in a circle
            raise _failure("remove", path, error) from error

    def claim_uids(self) -> frozenset[str]:
        """Return the claims that have a file of ours.

        Raises:
            SpecStoreError: the directory cannot be read.
        """
        return frozenset(match[1] for name in self._names() if (match := self._file_name.fullmatch(name)))

    def clean_temporaries(self) -> int:
        """Remove what killed writers left, and return how many files that was.

        Raises:
            SpecStoreError: the directory cannot be read, or keeps a file.
        """
        removed = 0
        for name in self._names():
            if self._temporary_name.fullmatch(name):
                path = self._directory / name
                try:
                    removed += _remove_abandoned(path)
                except OSError as error:
                    raise _failure("remove", path, error) from error
        return removed

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failure("list", self._directory, error) from error


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _replace(path: Path, content: bytes) -> None:
    """Put a complete file in the place of `path`, once more when a cleaner took the temporary file away."""
    for attempt in range(1, _ATTEMPTS + 1):
        temporary = path.parent / f".{path.stem}.{secrets.token_hex(8)}.tmp"
        try:
            _write_locked(temporary, path, content)
        except FileNotFoundError:
            if attempt == _ATTEMPTS:
                raise
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        else:
            return


def _write_locked(temporary: Path, path: Path, content: bytes) -> None:
    """Write and rename under a lock, by which a cleaner tells a living writer from a dead one."""
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        temporary.rename(path)


def _remove_abandoned(temporary: Path) -> bool:
    """Remove a temporary file unless its writer lives; a file that went away by itself counts as not removed."""
    try:
        with temporary.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink()
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


def _failure(action: str, path: Path, error: OSError) -> SpecStoreError:
    remedy = _REMEDIES.get(error.errno or 0, "check the directory on the node")
    return SpecStoreError(f"cannot {action} {path}: {error.strerror or error}; {remedy}")
