"""Makes the driver's image for the lab: what deploy/image/Dockerfile makes, without a registry or a builder.

In place of a base image it takes this machine's own Python with the libraries that it links, and in place of a package
index the packages of the virtual environment that runs this, which must be those of requirements/image.lock. The driver
lies where the Dockerfile puts it and starts by the same command, as the same user.
"""

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from lab.build import cache_dir
from lab.errors import LabError
from lab.images import Image, layer_of

_ROOT = Path(__file__).parent.parent
_LOCK = _ROOT / "requirements" / "image.lock"
_DRIVER = _ROOT / "src" / "dra_gpu"
_HOME = Path("opt/dra-gpu")
_ENTRYPOINT = ("/opt/dra-gpu/bin/python", "-I", "-X", "utf8", "-m", "dra_gpu")
_USER = "65532:65532"
_REPOSITORY = "dra-gpu.dev/dra-driver-gpu"
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_WITHIN_SECONDS = 300.0
# Parts of the standard library that no process of the driver needs.
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip",
    "lib2to3", "config-*", "*.a", "pydoc_data",
)  # fmt: skip


def project_version() -> str:
    """Return the version of the sources."""
    version: str = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def image_name(version: str = "") -> str:
    """Return the name that the chart's default values give to a version, by default the sources' own."""
    return f"{_REPOSITORY}:v{version or project_version()}"


def driver_image(work: Path, version: str = "") -> Image:
    """Make the image from the sources as they are now; its layers lie in `work` and in the cache.

    With another `version` it says that it is that one, for tests of upgrades.

    Raises:
        LabError: a package is missing, or is not the locked one.
    """
    driver = work / f"driver-layer{version}.tar"
    with tempfile.TemporaryDirectory(dir=work) as directory:
        tree = Path(directory)
        package = tree / _HOME / "lib" / _PYTHON / "site-packages" / "dra_gpu"
        shutil.copytree(_DRIVER, package, ignore=shutil.ignore_patterns("__pycache__"))
        if version:
            module = package / "__init__.py"
            module.write_text(module.read_text().replace(f'"{project_version()}"', f'"{version}"'))
        _compile(tree)
        layer_of(tree, driver)
    return Image(image_name(version), {}, {}, (), below=(_runtime_layer(), driver), entrypoint=_ENTRYPOINT, user=_USER)


def _runtime_layer() -> Path:
    """Return the layer with Python and the locked packages, made once for each of both."""
    key = hashlib.sha256()
    for part in (sys.version, sys.base_prefix, _LOCK.read_text(), Path(__file__).read_text()):
        key.update(part.encode())
    target = cache_dir() / "images" / f"runtime-{key.hexdigest()[:12]}.tar"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        tree = Path(directory) / "tree"
        _python(tree)
        _packages(tree / _HOME / "lib" / _PYTHON / "site-packages")
        _compile(tree)
        _libraries(tree)
        (tree / "etc").mkdir(exist_ok=True)
        (tree / "etc" / "passwd").write_text("root:x:0:0:root:/:/sbin/nologin\nnobody:x:65532:65532::/:/sbin/nologin\n")
        made = Path(directory) / target.name
        layer_of(tree, made)
        made.replace(target)
    return target


def _python(tree: Path) -> None:
    """Put the interpreter and its standard library where they lie here, and a virtual environment of it beside."""
    executable = Path(sys.executable).resolve()
    _copy(executable, tree)
    for name in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        base = Path(sys.base_prefix) / Path(name).relative_to(sys.prefix) if name.startswith(sys.prefix) else Path(name)
        target = tree / base.relative_to("/")
        shutil.copytree(base, target, ignore=_LEFT_OUT, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    (tree / _HOME / "bin").mkdir(parents=True)
    (tree / _HOME / "bin" / "python").symlink_to(executable)
    (tree / _HOME / "pyvenv.cfg").write_text(
        f"home = {executable.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
    )


def _packages(target: Path) -> None:
    for name, version in _locked():
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise LabError(f"{name} {version} of {_LOCK} is not installed: make .venv/.installed") from error
        if found.version != version:
            raise LabError(
                f"{name} is {found.version} here and {version} in {_LOCK}: make locks, make .venv/.installed"
            )
        for file in found.files or ():
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(found.locate_file(file)), target / file)


def _locked() -> Iterator[tuple[str, str]]:
    yield from re.findall(r"(?m)^([\w.-]+)==([^ ;]+)", _LOCK.read_text())


def _compile(tree: Path) -> None:
    """Compile every source to bytecode that counts whatever the files' times are."""
    hashes = ("--invalidation-mode", "unchecked-hash")
    _run(sys.executable, "-m", "compileall", "-q", *hashes, "-s", tree, "-p", "/", tree)


def _libraries(tree: Path) -> None:
    """Add the shared libraries that the interpreter and its extension modules link, by the paths they have here."""
    programs = [path for path in tree.rglob("*") if path.suffix == ".so" or ".so." in path.name]
    listed = _run("ldd", Path(sys.executable).resolve(), *programs)
    for path in set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.MULTILINE)):
        if not (tree / path.lstrip("/")).exists():
            _copy(Path(path), tree)


def _copy(path: Path, tree: Path) -> None:
    target = tree / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def _run(*command: str | Path) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_WITHIN_SECONDS)
    if result.returncode != 0:
        raise LabError(f"{command[0]} failed with {result.returncode}: {(result.stdout + result.stderr)[-800:]}")
    return result.stdout
