"""NVIDIA's side of the driver in this process, on simulated nodes."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pynvml
import pytest

from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.inventory.model import Gpu, MigPlacement
from dra_gpu.vendors.nvidia.vendor import NvidiaHost, NvidiaVendor
from dra_gpu_sim.node import SimulatedNode

_HOLDER = (
    "import pynvml\npynvml.nvmlInit()\npynvml.nvmlDeviceGetHandleByIndex({gpu})\nprint('held', flush=True)\ninput()"
)


class Bed:
    """A simulated node, and the vendor that looks at it.

    Device nodes of one minor number are the same device to whoever asks who has it open, and other tests hold theirs
    at the same time: of the machine's processes those alone are seen that a test shows.
    """

    def __init__(
        self, root: Path, profile: str, *, proc_root: Path | None = None, lock_dir: Path | None = None, **options
    ) -> None:
        self._processes = root.with_name(f"{root.name}-proc")
        self._processes.mkdir()
        self.node = SimulatedNode.create(root, profile, seed="test", **options)
        self.vendor = NvidiaVendor(
            NvidiaHost(
                HostDirectory.same(self.node.driver_root),
                HostDirectory.same(self.node.dev_root),
                self.node.root / "sys",
                proc_root=self._processes if proc_root is None else proc_root,
                driver_proc_root=self.node.proc_root,
                lock_dir=lock_dir,
            )
        )

    async def gpu(self, index: int = 0) -> Gpu:
        """What a look at all GPUs tells of one."""
        return (await self.vendor.scan()).gpus[index]

    async def partitioned(self, index: int = 0) -> Gpu:
        """A GPU that has been put into MIG mode."""
        gpu = await self.gpu(index)
        await self.vendor.set_mig_mode(gpu, enabled=True)
        return gpu

    @contextmanager
    def held(self, gpu: int = 0) -> Iterator[int]:
        """Let a monitor hold a GPU open; gives its process id."""
        environment = self.node.environment()
        with subprocess.Popen(
            [sys.executable, "-c", _HOLDER.format(gpu=gpu)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            try:
                assert holder.stdout.readline() == "held\n"
                self.show(holder.pid)
                yield holder.pid
            finally:
                holder.kill()

    def show(self, pid: int) -> None:
        """Let a process be seen by whoever looks for holders."""
        (self._processes / str(pid)).symlink_to(f"/proc/{pid}")

    def modes(self, index: int = 0) -> tuple[bool, bool]:
        """The truth about a GPU's MIG mode: now, and after its next reset."""
        with self.node.state() as state:
            return bool(state.gpus[index].mig_current), bool(state.gpus[index].mig_pending)

    def instances(self, index: int = 0):
        """The truth about a GPU's instances."""
        return self.node.gpus[index].instances


def place(gpu: Gpu, name: str, start: int = 0) -> MigPlacement:
    """The place of a profile that starts at a memory unit."""
    profile = next(profile for profile in gpu.mig_profiles if profile.name == name)
    return next(at for at in profile.placements if at.start == start)


@pytest.fixture
def make_bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bed]]:
    """Make nodes, of which one is looked at at a time; their paths are short."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dg-")))
        made: list[Bed] = []

        def make(profile: str = "H100", **options) -> Bed:
            for name, empty in (("nvmlLib", None), ("_nvmlLib_refcount", 0), ("_nvmlGetFunctionPointer_cache", {})):
                monkeypatch.setattr(pynvml, name, empty)
            made.append(Bed(root / f"node{len(made)}", profile, **{"gpus": 1} | options))
            return made[-1]

        yield make


@pytest.fixture
def bed(make_bed: Callable[..., Bed]) -> Bed:
    """One H100, which changes its MIG mode live."""
    return make_bed()
