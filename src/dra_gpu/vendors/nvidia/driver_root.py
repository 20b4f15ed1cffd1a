"""The driver installation of a node: its libraries, programs and firmware, wherever it keeps them.

A driver root is `/`, the file system of a driver container (`/run/nvidia/driver`), or a prefix (`/home/kubernetes/
bin/nvidia`). It may be exchanged under the running plugin, and be incomplete for a while: nothing incomplete is ever
answered or remembered, and what is remembered counts only while the directories are the very same ones, unchanged.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.vendors.base import NotReadyError
from dra_gpu.vendors.nvidia import libraries

_ATTEMPTS = 3
#: A directory changed less than this ago may change again without its time stamp showing it (ticks of the kernel's
#: clock, coarse file systems), so its content is not remembered yet.
_SETTLED_NS = 2_000_000_000
# For so long a walk through the installation is believed while the marks of its root and its NVML stay as they are.
_BURST_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DriverFile:
    """A file of the driver: its path on the host, without links, and its path in a container."""

    host: PurePosixPath
    container: PurePosixPath


@dataclass(frozen=True, slots=True)
class Library:
    """A library; `loaded_as` are the further names by which programs load it, such as `libcuda.so.1`."""

    file: DriverFile
    loaded_as: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """One complete driver installation.

    Attributes:
        version: of the driver, such as `580.65.06`.
        libraries: sorted by name; libcuda and libnvidia-ml are among them.
        programs: those of the known ones that are installed.
        firmware: images that the driver loads into the GPUs' system processors.
    """

    version: str
    libraries: tuple[Library, ...]
    programs: tuple[DriverFile, ...]
    firmware: tuple[DriverFile, ...]


@dataclass(frozen=True, slots=True)
class _Mark:
    """Identity and time of change of a directory; equal marks of all directories mean equal content."""

    path: Path
    device: int
    inode: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class _Memory:
    """What was found, when, and the marks by which a change shows."""

    marks: tuple[_Mark, ...]
    files: DriverFiles
    mark: tuple[tuple[int, int, int], ...] | None
    looked_ns: int

    def is_recent(self, mark: tuple[tuple[int, int, int], ...] | None, now_ns: int) -> bool:
        """Tell whether the walk through the installation can be left out: pods often start in bursts."""
        return mark is not None and mark == self.mark and 0 <= now_ns - self.looked_ns < _BURST_NS


class DriverRoot:
    """The installation below one directory, looked at anew whenever it changed.

    Args:
        directory: the driver root under its two names.
        graphics: also the libraries for drawing (EGL, GLX, Vulkan, VDPAU).
        now_ns: the clock of file time stamps, in nanoseconds.
    """

    def __init__(
        self, directory: HostDirectory, *, graphics: bool = False, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._directory = directory
        self._graphics = graphics
        self._now_ns = now_ns
        self._memory: _Memory | None = None
        self._nvml: Path | None = None

    def files(self) -> DriverFiles:
        """Return what is installed now.

        Raises:
            NotReadyError: the installation is incomplete or is being changed; lists every directory that was tried.
        """
        memory = self._memory  # other threads may be here too
        if memory is not None and memory.is_recent(self.mark(), self._now_ns()):
            return memory.files
        for _ in range(_ATTEMPTS):
            mark = self.mark()
            root = self._directory.real()
            before = _marks(root)
            if memory is not None and memory.marks == before:
                self._memory = _Memory(before, memory.files, mark, self._now_ns())
                return memory.files
            files = _look(root, graphics=self._graphics)
            if _marks(self._directory.real()) == before:
                if max(mark.changed_ns for mark in before) < self._now_ns() - _SETTLED_NS:
                    self._memory = _Memory(before, files, mark, self._now_ns())
                return files
        raise NotReadyError(
            f"NVIDIA driver root {self._directory.host} is being changed; wait until the driver's installation ends"
        )

    def mark(self) -> tuple[tuple[int, int, int], ...] | None:
        """Return what changes when the installation does; None when there is none. Three system calls.

        An installer replaces the root, the directory of NVML, or that library: their identities and times of change.
        """
        try:
            nvml = self._nvml or find_nvml(self._directory.process)
            self._nvml = nvml
            return tuple(_identity(path) for path in (self._directory.process, nvml.parent, nvml))
        except (OSError, NotReadyError):
            self._nvml = None  # it may lie elsewhere the next time
            return None

    def sockets(self) -> tuple[DriverFile, ...]:
        """Return the sockets of the driver's daemons that exist now."""
        root = self._directory.real()
        return tuple(
            DriverFile(root.on_host(real), PurePosixPath("/") / socket)
            for socket in libraries.SOCKETS
            if (real := _resolved(root, socket)) is not None
        )


def find_nvml(root: Path) -> Path:
    """Return the NVML library to load from a driver root, by its path without links in this process' file system.

    Raises:
        NotReadyError: there is none; lists every directory that was tried.
    """
    directory = HostDirectory.same(root).real()
    name = f"{libraries.NVML}.so.1"
    for place in libraries.LIBRARY_DIRECTORIES:
        if (real := _resolved(directory, place / name)) is not None:
            return directory.here(real)
    for _, container, names in _library_directories(directory):
        if (version := _version(directory, container, names)) is not None:
            real = _resolved(directory, container / f"{libraries.NVML}.so.{version}")
            if real is not None:
                return directory.here(real)
    raise _incomplete(directory, name)


def find_library(root: Path, name: str) -> Path | None:
    """Return a library of a file system by its name, without links in this process' file system; None without it."""
    directory = HostDirectory.same(root).real()
    found = (_resolved(directory, place / name) for place in libraries.LIBRARY_DIRECTORIES)
    return next((directory.here(real) for real in found if real is not None), None)


def find_program(root: Path, name: str) -> Path:
    """Return one of the driver's programs in a driver root, by its path without links in this process' file system.

    Raises:
        NotReadyError: there is none; lists every directory that was tried.
    """
    directory = HostDirectory.same(root).real()
    for place in libraries.PROGRAM_DIRECTORIES:
        if (real := _resolved(directory, place / name)) is not None:
            return directory.here(real)
    tried = ", ".join(str(directory.here(place)) for place in libraries.PROGRAM_DIRECTORIES)
    raise NotReadyError(f"{name} is in none of {tried}: check the driver's installation, or the driver root given")


def _look(root: HostDirectory, *, graphics: bool) -> DriverFiles:
    for real, container, names in _library_directories(root):
        version = _version(root, container, names)
        if version is not None:
            found = tuple(_libraries(root, real, container, names, version, graphics=graphics))
            if {libraries.CUDA, libraries.NVML} <= {libraries.stem(library.file.container.name) for library in found}:
                return DriverFiles(version, found, tuple(_programs(root)), tuple(_firmware(root, version)))
    raise _incomplete(root, f"{libraries.CUDA}.so.<version> and {libraries.NVML}.so.<version> of one version")


def _incomplete(root: HostDirectory, wanted: str) -> NotReadyError:
    tried = ", ".join(str(root.on_host(place)) for place in libraries.LIBRARY_DIRECTORIES)
    return NotReadyError(
        f"NVIDIA driver root {root.host} is not ready: no {wanted} in any of {tried}. Install the NVIDIA driver, wait "
        "until its installation ends, or set the driver root to where it is installed"
    )


def _library_directories(root: HostDirectory) -> Iterator[tuple[PurePosixPath, PurePosixPath, frozenset[str]]]:
    """Yield each existing directory once: its path without links, its path as looked up, the names in it.

    A directory that only links to libcuda in another one (Debian's alternatives) is followed by that other one.
    """
    seen: set[PurePosixPath] = set()
    places = list(libraries.LIBRARY_DIRECTORIES)
    while places:
        place = places.pop(0)
        real = _resolved(root, place)
        if real is None or real in seen:
            continue
        seen.add(real)
        try:
            names = frozenset(entry.name for entry in root.here(real).iterdir())
        except OSError:
            continue
        target = _resolved(root, real / f"{libraries.CUDA}.so.1")
        if target is not None and target.parent not in seen:
            places.insert(0, target.parent)
        yield real, place, names


def _version(root: HostDirectory, place: PurePosixPath, names: frozenset[str]) -> str | None:
    """Return the version installed in a directory: the one that `libcuda.so.1` leads to, else the newest."""
    candidates = libraries.versions(names)
    if not candidates:
        return None
    target = _resolved(root, place / f"{libraries.CUDA}.so.1")
    linked = target.name.removeprefix(f"{libraries.CUDA}.so.") if target is not None else ""
    return linked if linked in candidates else libraries.newest(candidates)


def _libraries(
    root: HostDirectory,
    real: PurePosixPath,
    container: PurePosixPath,
    names: frozenset[str],
    version: str,
    *,
    graphics: bool,
) -> Iterator[Library]:
    wanted = sorted(name for name in names if libraries.is_driver_library(name, version, graphics=graphics))
    stems = {libraries.stem(name) for name in wanted}
    links: dict[PurePosixPath, list[str]] = {}
    for name in sorted(names - set(wanted)):
        if libraries.stem(name) in stems and (target := _resolved(root, real / name)) is not None:
            links.setdefault(target, []).append(name)
    for name in wanted:
        target = _resolved(root, real / name)
        if target is not None:
            known = libraries.LOADED_AS.get(libraries.stem(name), ())
            loaded_as = tuple(sorted({*links.get(target, ()), *known}))
            yield Library(DriverFile(root.on_host(target), PurePosixPath("/") / container / name), loaded_as)


def _programs(root: HostDirectory) -> Iterator[DriverFile]:
    for name in libraries.PROGRAMS:
        for place in libraries.PROGRAM_DIRECTORIES:
            if (real := _resolved(root, place / name)) is not None:
                yield DriverFile(root.on_host(real), PurePosixPath("/usr/bin") / name)
                break


def _firmware(root: HostDirectory, version: str) -> Iterator[DriverFile]:
    for place in libraries.FIRMWARE_DIRECTORIES:
        real = _resolved(root, place / "nvidia" / version)
        if real is None:
            continue
        for path in sorted(root.here(real).glob("gsp*.bin")):
            image = _resolved(root, real / path.name)
            if image is not None:
                yield DriverFile(root.on_host(image), PurePosixPath("/lib/firmware/nvidia") / version / path.name)
        return


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _marks(root: HostDirectory) -> tuple[_Mark, ...]:
    """Mark every directory that has a say in what is found."""
    firmware = [place / "nvidia" for place in libraries.FIRMWARE_DIRECTORIES]
    places = [PurePosixPath(), *libraries.LIBRARY_DIRECTORIES, *libraries.PROGRAM_DIRECTORIES, *firmware]
    for place in libraries.LIBRARY_DIRECTORIES:
        if (target := _resolved(root, place / f"{libraries.CUDA}.so.1")) is not None:
            places.append(target.parent)
            places += (images / target.name.removeprefix(f"{libraries.CUDA}.so.") for images in firmware)
    marks: dict[Path, _Mark] = {}
    for place in places:
        real = _resolved(root, place)
        if real is None:
            continue
        path = root.here(real)
        try:
            found = path.stat()
        except OSError:
            continue
        marks[path] = _Mark(path, found.st_dev, found.st_ino, found.st_mtime_ns)
    return tuple(marks.values())


def _resolved(root: HostDirectory, path: PurePosixPath) -> PurePosixPath | None:
    """Follow the links in a path inside the root; None when it does not exist or leads in a circle."""
    try:
        return root.resolve(path)
    except OSError:
        return None
