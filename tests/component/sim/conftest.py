"""Simulated nodes, and nvidia-ml-py pointed at one of them."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml
import pytest

from dra_gpu_sim.node import SimulatedNode

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


def code(call: Callable[[], object]) -> int:
    """The NVML return code a call ends with."""
    try:
        call()
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0
