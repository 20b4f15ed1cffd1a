"""The directories of a shared GPU: what its daemon and its clients meet in.

`<service>/<first 8 hex digits of the UUID>/{pipe,log,shm}`. Everything above the three is closed to other users: a
container reaches what is mounted into it and nothing beside that. With protocol 3 every share has a directory of its
own below `pipe`, so that no container can reach another share's socket.
Source: MPS documentation r615, "Appendix: Environment Variables" and "MPS v3 Namespaces" (layout of the pipe
directory); unix(7), the length of a socket's path.
"""

import errno
import itertools
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps import linux
from dra_gpu.mps.service import MpsError, MpsErrorKind

#: The daemon's server that owns the GPU (protocol 3).
SERVER = "gpu"
#: Longest path of a Unix socket: sun_path holds 108 bytes, the last of them a NUL.
MAX_SOCKET_BYTES = 107

_HEX = re.compile(r"[0-9a-f]", re.IGNORECASE)
_SHORT, _LONG = 8, 32
_CLOSED, _OPEN, _SCRATCH = 0o700, 0o755, 0o1777
# As much as the kernel gives /dev/shm by default (tmpfs(5)); what is written counts as memory of the container's pod.
_SHM_OPTIONS = "size=50%,mode=1777"


@dataclass(frozen=True, slots=True)
class GpuDirectories:
    """The directories of one shared GPU.

    Attributes:
        root: holds the others; only root enters it.
    """

    root: Path

    @property
    def pipe(self) -> Path:
        """The daemon's pipe directory; clients of classic MPS mount it, so any user may enter."""
        return self.root / "pipe"

    @property
    def log(self) -> Path:
        """The daemon's logs, closed."""
        return self.root / "log"

    @property
    def shm(self) -> Path:
        """What daemon and clients have at /dev/shm: anyone writes, nobody removes another's files."""
        return self.root / "shm"

    def of_share(self, protocol: MpsProtocol, name: str) -> Path:
        """Return the pipe directory that a share's clients mount.

        Raises:
            MpsError: the path of its socket would be too long; the daemon would end without a word.
        """
        path = self.pipe if protocol is MpsProtocol.CLASSIC else self.pipe / SERVER / name
        socket = path / "control"
        if (length := len(os.fsencode(socket))) > MAX_SOCKET_BYTES:
            raise MpsError(
                MpsErrorKind.UNSUPPORTED,
                f"share {name}: the path {socket} of its socket has {length} bytes and a Unix socket's may have "
                f"{MAX_SOCKET_BYTES}: start the MPS service with a shorter --directory",
            )
        return path

    def make(self, *, own_memory: bool) -> None:
        """Make all of them, with the modes they need whatever the umask is.

        Args:
            own_memory: let what clients write to /dev/shm be a file system of its own, unless there is one: below /run
                they could fill what the whole node needs. Not while the daemon runs: it would not see it.

        Raises:
            OSError: no space or no rights.
        """
        for path, mode in ((self.root, _CLOSED), (self.pipe, _OPEN), (self.log, _CLOSED), (self.shm, _SCRATCH)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
        if own_memory and not self.shm.is_mount():
            linux.tmpfs(str(self.shm), _SHM_OPTIONS)

    def open_share(self, name: str) -> None:
        """Let any user enter a share's own directory, which the daemon made (protocol 3).

        Raises:
            FileNotFoundError: the daemon made it elsewhere.
        """
        (self.pipe / SERVER).chmod(_OPEN)
        (self.pipe / SERVER / name).chmod(_OPEN)

    def remove(self) -> None:
        """Remove everything, with what clients left there.

        Raises:
            OSError: something stays in spite of that.
        """
        _remove(self.root)

    def remove_share(self, name: str) -> None:
        """Remove what the daemon or a client left of a share's own directory (protocol 3).

        Raises:
            OSError: something stays.
        """
        _remove(self.pipe / SERVER / name)


def directory_name(uuid: str, taken: frozenset[str]) -> str:
    """Name a GPU's directory after its UUID: shortly, and at length where another GPU begins the same."""
    digits = "".join(_HEX.findall(uuid.removeprefix("GPU-"))).lower()
    return digits[:_LONG] if digits[:_SHORT] in taken else digits[:_SHORT]


def _remove(root: Path) -> None:
    """Remove a tree that containers wrote to, without following links; a mount inside is taken away first.

    What lies in a directory is moved up before the directory goes, so that neither a depth beyond any recursion nor a
    path beyond any length keeps a GPU shared for ever.
    """
    try:
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        marks = (f".{secrets.token_hex(8)}-{number}" for number in itertools.count())
        while names := os.listdir(top):  # noqa: PTH208 - a descriptor has no path
            for name in names:
                _remove_entry(root, top, name, marks)
    finally:
        os.close(top)
    with suppress(FileNotFoundError):
        root.rmdir()


def _remove_entry(root: Path, top: int, name: str, marks: Iterator[str]) -> None:
    """Remove a file, or a directory whose content moves up to `top` under the names of `marks`."""
    # A mount is busy, and nothing can be moved out of one. What an error keeps from being done is done the next time.
    with suppress(FileNotFoundError), _mount_taken_away(root / name, errno.EBUSY, errno.EXDEV):
        try:
            os.unlink(name, dir_fd=top)
        except IsADirectoryError:
            _empty(root / name, top, name, marks)
            try:
                os.rmdir(name, dir_fd=top)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise


def _empty(path: Path, top: int, name: str, marks: Iterator[str]) -> None:
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        for inner in os.listdir(directory):  # noqa: PTH208 - as above
            with _mount_taken_away(path / inner, errno.EBUSY):
                os.rename(inner, next(marks), src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)


@contextmanager
def _mount_taken_away(path: Path, *signs: int) -> Iterator[None]:
    """Take away what is mounted at a path when an error says that something is."""
    try:
        yield
    except OSError as error:
        if error.errno not in signs:
            raise
        linux.detach(str(path))
