"""NVIDIA's container toolkit: the program whose hooks finish a container's file system before it starts.

Its hooks link the libraries, renew the loader's cache, enable newer CUDA libraries that an image brings, and keep
NVML from making device nodes. A hook that the installed release does not know would fail every container, so the
program is asked, by looking for the hook's name in it: it belongs to the host and cannot be run from here.
Source: NVIDIA/nvidia-container-toolkit, internal/discover/hooks.go and cmd/nvidia-cdi-hook: `enable-cuda-compat` came
with v1.17.5, `disable-device-node-modification` with v1.17.8; the GPU Operator installs wrappers beside `<name>.real`.
"""

import mmap
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import Hook
from dra_gpu.vendors.nvidia.driver_root import DriverFiles

_CANDIDATES = tuple(
    PurePosixPath(path)
    for path in (
        "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
        "/usr/bin/nvidia-cdi-hook",
        "/usr/local/bin/nvidia-cdi-hook",
        "/opt/nvidia-container-toolkit/bin/nvidia-cdi-hook",
        "/run/current-system/sw/bin/nvidia-cdi-hook",
        "/usr/local/nvidia/toolkit/nvidia-ctk",
        "/usr/bin/nvidia-ctk",
        "/usr/local/bin/nvidia-ctk",
        "/run/current-system/sw/bin/nvidia-ctk",
    )
)
_LDCONFIG_REAL = PurePosixPath("/sbin/ldconfig.real")  # Debian's /sbin/ldconfig may be a script around it

_SYMLINKS = "create-symlinks"
_COMPAT = "enable-cuda-compat"
_LDCACHE = "update-ldcache"
_NODES = "disable-device-node-modification"
HOOKS = (_SYMLINKS, _COMPAT, _LDCACHE, _NODES)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """An installed container toolkit.

    Attributes:
        program: `nvidia-cdi-hook` or `nvidia-ctk`, by its path on the host.
        hooks: those of `HOOKS` that it has.
        ldconfig: the host's loader cache program, when it is not the toolkit's default.
    """

    program: PurePosixPath
    hooks: frozenset[str] = frozenset(HOOKS)
    ldconfig: PurePosixPath | None = None

    def edits(self, files: DriverFiles) -> tuple[Hook, ...]:
        """Return the hooks for a container that gets these driver files."""
        links: list[str] = []
        folders: list[str] = []
        for library in files.libraries:
            place = library.file.container
            for name in library.loaded_as:
                links += ("--link", f"{place.name}::{place.parent / name}")
            if str(place.parent) not in folders:
                folders.append(str(place.parent))
        ldcache = [] if self.ldconfig is None else ["--ldconfig-path", str(self.ldconfig)]
        for folder in folders:
            ldcache += ("--folder", folder)
        arguments = {
            _SYMLINKS: links,
            _COMPAT: [f"--host-driver-version={files.version}"],
            _LDCACHE: ldcache,
            _NODES: [],
        }
        return tuple(self._hook(name, arguments[name]) for name in HOOKS if name in self.hooks)

    def _hook(self, name: str, arguments: list[str]) -> Hook:
        command = ["hook", name] if self.program.name == "nvidia-ctk" else [name]
        return Hook(
            hook_name="createContainer",
            path=str(self.program),
            args=(self.program.name, *command, *arguments),
            env=("NVIDIA_CTK_DEBUG=false",),
        )


class ToolkitSearch:
    """Looks for the container toolkit on the host, anew at each call: it may be installed later than the driver runs.

    Args:
        host: the host's root; None when this process does not see it, only a configured program counts then.
        configured: the program by its path on the host, taken as it is.
    """

    def __init__(self, host: HostDirectory | None, configured: PurePosixPath | None = None) -> None:
        self._host = host
        self._configured = configured
        self._read: dict[tuple[Path, int, int], frozenset[str]] = {}

    def find(self) -> Toolkit | None:
        """Return the toolkit; None when it is not installed."""
        if self._host is None:
            return None if self._configured is None else Toolkit(self._configured)
        ldconfig = _LDCONFIG_REAL if _executable(self._host, _LDCONFIG_REAL) is not None else None
        for program in _CANDIDATES if self._configured is None else (self._configured,):
            if self._configured is not None or _executable(self._host, program) is not None:
                return Toolkit(program, self._hooks(self._host, program), ldconfig)
        return None

    def _hooks(self, host: HostDirectory, program: PurePosixPath) -> frozenset[str]:
        """Return the hooks whose names stand in the program, or in the one it wraps; all where none can be seen."""
        for candidate in (program.with_name(f"{program.name}.real"), program):
            path = _executable(host, candidate)
            if path is not None and (found := self._names_in(path)):
                return found
        return frozenset(HOOKS)

    def _names_in(self, path: Path) -> frozenset[str]:
        """Read a program of some ten MB once, as long as it is the same file."""
        try:
            found = path.stat()
        except OSError:  # taken away this instant
            return frozenset()
        key = (path, found.st_ino, found.st_mtime_ns)
        if key not in self._read:
            self._read = {key: _names_in(path)}
        return self._read[key]


def _names_in(path: Path) -> frozenset[str]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return frozenset(name for name in HOOKS if content.find(name.encode()) >= 0)
    except (OSError, ValueError):  # unreadable, or empty
        return frozenset()


def _executable(host: HostDirectory, program: PurePosixPath) -> Path | None:
    try:
        path = host.here(host.resolve(program))
        mode = path.stat().st_mode
    except OSError:
        return None
    return path if stat.S_ISREG(mode) and mode & stat.S_IXUSR else None
