"""Compiling the simulated library and programs, once per content.

The cache lies under ``$DRA_GPU_CACHE`` or ``~/.cache/dra-gpu``, in ``sim/<hash of the sources and the compiler>``. A
build is made aside and renamed into place, so that several processes may build at once.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_HERE = Path(__file__).parent
_FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-format-truncation")

_PARTS = ("nvml", "smi", "mps", "cuda", "fm")

_DAEMON = ("attach", "classic", "configuration", "control", "daemon", "log", "modern", "modules", "servers", "table")
_SHARED = ("mps/devices", "mps/wire")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "nvidia-smi": ("nvml", "smi"),
    "nvidia-cuda-mps-control": ("nvml", *_SHARED, *(f"mps/{name}" for name in _DAEMON)),
    "nvidia-cuda-mps-server": ("nvml", *_SHARED, "mps/server"),
    "cuda-client": ("nvml", *_SHARED, "cuda"),
}
"""Programs, and what each is linked of: all sources of a folder, or one."""

STUB_LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-gpucomp.so",
    "libnvidia-allocator.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-opencl.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libcudadebugger.so.1",
)
"""SONAMEs of driver libraries that exist in the driver root and do nothing; ldconfig reads them as real ones."""


class BuildError(RuntimeError):
    """The compiler is missing or refused the sources."""


def cache_directory() -> Path:
    """Where builds are kept."""
    base = os.environ.get("DRA_GPU_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "dra-gpu") / "sim"


def _compiler() -> str:
    path = shutil.which("gcc") or shutil.which("cc")
    if path is None:
        raise BuildError("no C compiler: the simulated GPUs are compiled on first use; apt-get install build-essential")
    return path


def _run(arguments: Sequence[str | Path]) -> None:
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{' '.join(map(str, arguments))} failed:\n{result.stderr}")


def _sources(folder: str) -> list[Path]:
    return sorted((_HERE / folder).glob("*.c"))


def _key(compiler: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for part in _PARTS for path in (_HERE / part).glob("*.[ch]")):
        digest.update(f"{path.parent.name}/{path.name}".encode() + path.read_bytes())
    info = Path(compiler).resolve().stat()
    digest.update(f"{compiler} {info.st_size} {info.st_mtime_ns} {_FLAGS} {STUB_LIBRARIES}".encode())
    return digest.hexdigest()[:20]


class Build:
    """A finished build: paths to copy from."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self._folder = folder
        self._compiler = compiler

    def program(self, name: str) -> Path:
        """One of :data:`PROGRAMS`, linked statically so that it runs in an image without a C library."""
        return self._folder / name

    def stub(self, soname: str) -> Path:
        """One of :data:`STUB_LIBRARIES`."""
        return self._folder / "stubs" / soname

    @property
    def fabric_manager_library(self) -> Path:
        """The library by which programs ask a Fabric Manager."""
        return self._folder / "libnvfm.so"

    def library(self, without: Iterable[str] = ()) -> Path:
        """The NVML library, less some exported symbols, as an older driver's would be.

        Raises:
            BuildError: a name is not that of an exported symbol, or linking failed.
        """
        missing = sorted(set(without))
        name = hashlib.sha256(" ".join(missing).encode()).hexdigest()[:16] if missing else "full"
        path = self._folder / f"libnvidia-ml-{name}.so"
        if path.exists():
            return path
        unknown = [symbol for symbol in missing if symbol not in self.symbols()]
        if unknown:
            raise BuildError(f"the simulated library has no symbol {', '.join(unknown)} that could be left out")
        _link(self._compiler, self._folder, path, missing)
        return path

    def symbols(self) -> frozenset[str]:
        """The exported symbols of the full library."""
        return frozenset((self._folder / "symbols").read_text().split())


def _link(compiler: str, folder: Path, target: Path, missing: Sequence[str]) -> None:
    hidden = "".join(f"{symbol}; " for symbol in missing)
    exports = f"{{ global: nvml*; local: {hidden}*; }};\n"
    _link_shared(compiler, target, "libnvidia-ml.so.1", exports, _objects(folder, ("nvml",)))


def _link_shared(compiler: str, target: Path, soname: str, exports: str, objects: Sequence[Path]) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        script, made = Path(scratch) / "version", Path(scratch) / "library"
        script.write_text(exports)
        options = [f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}"]
        _run([compiler, "-shared", *options, "-o", made, *objects, "-lpthread"])
        made.rename(target)


def _compile(compiler: str, folder: Path) -> None:
    jobs: list[list[str | Path]] = [
        [compiler, *_FLAGS, "-c", source, "-o", folder / f"{part}-{source.stem}.o"]
        for part in _PARTS
        for source in _sources(part)
    ]
    stubs = folder / "stubs"
    stubs.mkdir()
    jobs += [
        [compiler, "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", stubs / name, "-xc", os.devnull]
        for name in STUB_LIBRARIES
    ]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        list(pool.map(_run, jobs))
    _link(compiler, folder, folder / "libnvidia-ml-full.so", ())
    exports = "{ global: fm*; local: *; };\n"
    _link_shared(compiler, folder / "libnvfm.so", "libnvfm.so.1", exports, _objects(folder, ("nvml", "fm")))
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", folder / "libnvidia-ml-full.so"], capture_output=True, text=True, check=True
    )
    (folder / "symbols").write_text("\n".join(line.split()[-1] for line in exported.stdout.splitlines()))
    programs = [
        [compiler, "-static", "-s", "-o", folder / name, *_objects(folder, parts), "-lpthread"]
        for name, parts in PROGRAMS.items()
    ]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        list(pool.map(_run, programs))


def _objects(folder: Path, parts: Sequence[str]) -> list[Path]:
    patterns = (f"{part.replace('/', '-')}.o" if "/" in part else f"{part}-*.o" for part in parts)
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def build() -> Build:
    """The build of the present sources; compiled now if the cache does not have it.

    Raises:
        BuildError: no compiler, or it refused.
    """
    compiler = _compiler()
    home = cache_directory()
    target = home / _key(compiler)
    if not (target / "cuda-client").exists():
        home.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=home, prefix=".build-"))
        try:
            _compile(compiler, scratch)
            scratch.chmod(0o755)
            try:
                scratch.rename(target)
            except OSError:
                if not (target / "cuda-client").exists():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return Build(target, compiler)
