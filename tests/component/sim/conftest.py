"""Simulated nodes, and nvidia-ml-py pointed at one of them."""

import ctypes
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml
import pytest

from dra_gpu_sim.node import SimulatedNode
from tests.component.sim.mps import Mps

Make = Callable[..., SimulatedNode]


@pytest.fixture
def make_node(tmp_path: Path) -> Make:
    """Make nodes below the test's directory; each call gives another one."""
    made: list[SimulatedNode] = []

    def make(profile: str = "H100", **options: Any) -> SimulatedNode:
        made.append(SimulatedNode.create(tmp_path / f"node{len(made)}", profile, seed="test", **options))
        return made[-1]

    return make


@pytest.fixture
def node(make_node: Make) -> SimulatedNode:
    """A node with two H100, where any name counts as that of a cgroup."""
    return make_node("H100", gpus=2, settings=["node.cgroup_root="])


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[SimulatedNode], ModuleType]]:
    """nvidia-ml-py on the library of a node, initialised; as many nodes one after the other as a test likes."""
    loaded: list[ctypes.CDLL] = []

    def load_library(node: SimulatedNode) -> ModuleType:
        library = ctypes.CDLL(str(node.library))
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        pynvml.nvmlInit()
        loaded.append(library)
        return pynvml

    yield load_library
    for library in loaded:
        library.nvmlShutdown()


@pytest.fixture
def nvml(node: SimulatedNode, load: Callable[[SimulatedNode], ModuleType]) -> ModuleType:
    """nvidia-ml-py on the node with two H100."""
    return load(node)


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Path]:
    """A directory that other users may enter and whose path leaves room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make_mps(short: Path) -> Iterator[Callable[..., Mps]]:
    """Nodes with MPS, whose servers start at once; the daemon is not yet running."""
    made: list[Mps] = []

    def make(profile: str = "H100", *, gpus: int = 1, settings: tuple[str, ...] = (), **options: Any) -> Mps:
        base = short / str(len(made))
        base.mkdir()
        quick = ["node.cgroup_root=", "node.mps_start_ms=1", *settings]
        node = SimulatedNode.create(base / "node", profile, gpus=gpus, seed="test", settings=quick, **options)
        made.append(Mps(node, base))
        return made[-1]

    yield make
    for mps in made:
        mps.kill()


@pytest.fixture
def mps(make_mps: Callable[..., Mps]) -> Mps:
    """A node with one H100 and driver 615, its daemon running with protocol 3 for all users."""
    return make_mps().start("-p", "3", "-m")


@pytest.fixture
def classic(make_mps: Callable[..., Mps]) -> Mps:
    """A node with one H100 and driver 580, its daemon running for one user at a time."""
    return make_mps(driver_version="580.95.05").start()


def code(call: Callable[[], object]) -> int:
    """The NVML return code a call ends with."""
    try:
        call()
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0
