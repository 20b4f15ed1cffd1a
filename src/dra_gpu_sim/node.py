"""A simulated node: made from a profile, broken, looked at, and removed again.

``SimulatedNode.create(root, "H100")`` makes everything a GPU node shows to a driver below one directory: a real NVML
library and nvidia-smi, device nodes, /proc, sysfs, the driver root. Several nodes may exist side by side.
"""

import ctypes
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from dra_gpu_sim import faults, hotplug, tree
from dra_gpu_sim.boards import profile_named
from dra_gpu_sim.build import build
from dra_gpu_sim.calls import Call, read_calls
from dra_gpu_sim.checker import Client, Gpu, Snapshot, clients, sessions, snapshot
from dra_gpu_sim.client import CudaClient
from dra_gpu_sim.fill import apply_setting, fill_node, symbols_missing_in
from dra_gpu_sim.nvlinks import set_links
from dra_gpu_sim.state import MIG_AFTER_RESET, MIG_LIVE, NO_INSTANCE, PROCESS_COMPUTE, SimState, in_use
from dra_gpu_sim.statefile import create_state, locked

_LIBRARIES = "usr/lib/x86_64-linux-gnu"


class SimulatedNode:
    """A node below ``root``; its attributes are the paths a driver is pointed at."""

    def __init__(self, root: Path) -> None:
        """Take the node that exists at ``root``.

        Raises:
            FileNotFoundError: there is none.
        """
        self.root = root.absolute()
        self.state_path = self.root / "state"
        self.calls_log = self.root / "calls.log"
        self.boot_id_file = self.root / "boot_id"
        self.dev_root = self.root / "dev"
        self.proc_root = self.root / "proc"
        self.sysfs_root = self.root / "sys"
        self.driver_root = self.root / "driver"
        self.library = self.driver_root / _LIBRARIES / "libnvidia-ml.so.1"
        self.nvidia_smi = self.driver_root / "usr/bin/nvidia-smi"
        self.mps_control = self.driver_root / "usr/bin/nvidia-cuda-mps-control"
        self.cuda_client = self.root / "bin/cuda-client"
        if not self.state_path.is_file():
            raise FileNotFoundError(f"{self.root} holds no simulated node: make one with dra-gpu-sim create")

    @classmethod
    def create(
        cls,
        root: Path,
        profile: str = "H100",
        *,
        gpus: int | None = None,
        driver_version: str | None = None,
        seed: str | None = None,
        settings: Sequence[str] = (),
        without_symbols: Sequence[str] = (),
        log_calls: bool = True,
        devices: bool = True,
    ) -> Self:
        """Make a node.

        Args:
            root: directory to make it in; created, must hold no node yet.
            profile: one of :data:`dra_gpu_sim.boards.PROFILES`.
            gpus: how many GPUs, when not as many as the profile has.
            driver_version: of the driver, when not the profile's; below 615 the memory limit calls are missing.
            seed: what UUIDs and serial numbers follow from; the root's path when not given.
            settings: ``gpu.N.FIELD=VALUE`` and the like, see :func:`dra_gpu_sim.fill.apply_setting`.
            without_symbols: NVML calls that the library shall not export.
            log_calls: whether calls are logged; a benchmark turns it off.
            devices: whether /dev holds character devices (as far as permitted) or regular files.

        Raises:
            FileExistsError: there is a node already.
            ValueError: a profile, number, setting or symbol that does not exist.
            BuildError: the C sources could not be compiled.
        """
        board_profile = profile_named(profile)
        built = build()
        root = root.absolute()
        root.mkdir(parents=True, exist_ok=True)
        create_state(root / "state")
        try:
            (root / "calls.log").touch()
            (root / "calls.log").chmod(0o666)
            (root / "boot_id").write_text(f"{uuid.uuid4()}\n")
            with locked(root / "state") as state:
                fill_node(
                    state,
                    board_profile,
                    gpus=gpus,
                    driver_version=driver_version,
                    seed=str(root) if seed is None else seed,
                    log_calls=log_calls,
                )
                for setting in settings:
                    apply_setting(state, setting)
                version, fabric_manager = state.driver_version.decode(), state.fabric_manager
                tree.make_dev(root / "dev", state, devices=devices)
                tree.make_proc(root / "proc", state)
                tree.make_sys(root / "sys", state)
            missing = tuple({*without_symbols, *symbols_missing_in(version)})
            tree.make_driver(root / "driver", version, built, missing)
            if fabric_manager:
                tree.make_fabric_manager(root / "driver", built)
            tree.make_bin(root / "bin", built)
        except BaseException:
            _remove(root)
            raise
        return cls(root)

    def destroy(self) -> None:
        """Remove the node's files; whoever has its library loaded keeps what it mapped."""
        _remove(self.root)

    def environment(self) -> dict[str, str]:
        """Variables under which any NVML program finds this node's library and devices."""
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "DRA_GPU_SIM_ROOT": str(self.root),
            "PATH": f"{self.nvidia_smi.parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        }

    @contextmanager
    def state(self) -> Iterator[SimState]:
        """The locked state, for what has no method here."""
        with locked(self.state_path) as state:
            yield state

    @property
    def boot_id(self) -> str:
        """The boot id; :meth:`reboot` changes it."""
        return self.boot_id_file.read_text().strip()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs as they are now, in order."""
        return self.snapshot().gpus

    @property
    def uuids(self) -> list[str]:
        """The GPUs' UUIDs in order."""
        return [gpu.uuid for gpu in self.gpus]

    def snapshot(self) -> Snapshot:
        """What is true of the node now; comparable."""
        return snapshot(self.root)

    def inject(
        self,
        call: str = "*",
        *,
        gpu: int | None = None,
        code: int = 0,
        delay_ms: int = 0,
        block: bool = False,
        count: int | None = None,
    ) -> int:
        """Make a call late, stuck or wrong, on one GPU or all; gives a number to clear it by. See ``faults.inject``."""
        with self.state() as state:
            return faults.inject(state, call, gpu=gpu, code=code, delay_ms=delay_ms, block=block, count=count)

    def clear(self, *, serial: int | None = None, call: str | None = None, gpu: int | None = None) -> int:
        """Remove injected faults (all without arguments) and let go the calls they hold; gives how many."""
        with self.state() as state:
            return faults.clear(state, serial=serial, call=call, gpu=gpu)

    def faults(self) -> list[faults.Fault]:
        """The injected faults as they stand, with how many calls each has met."""
        with self.state() as state:
            return faults.faults(state)

    def lose_gpu(self, gpu: int, *, xid: int | None = None) -> None:
        """Let a GPU fall off the bus, with an Xid as its last word: every call on it answers GPU_IS_LOST."""
        with self.state() as state:
            faults.lose(state, gpu, xid)

    def return_gpu(self, gpu: int) -> None:
        """Bring a lost GPU back: found on the bus again and bound anew, see :meth:`bind_gpu`."""
        self.bind_gpu(gpu)

    def bind_gpu(self, gpu: int, address: str | None = None) -> None:
        """Let the driver bind a GPU (anew), in another slot if an address is given; it has forgotten everything.

        NVML sees it at its next initialisation.

        Raises:
            ValueError: that is no free PCI address.
        """
        with self.state() as state:
            if address is None:
                hotplug.bind(state, self.root, gpu)
            else:
                hotplug.move(state, self.root, gpu, address)

    def unbind_gpu(self, gpu: int) -> None:
        """Let the driver give a GPU up, as for a virtual machine or before it is pulled."""
        with self.state() as state:
            hotplug.unbind(state, self.root, gpu)

    def set_gpu_count(self, count: int) -> None:
        """Let the driver have bound the first ``count`` GPUs only."""
        with self.state() as state:
            for index in range(state.gpu_count):
                if index < count and not state.gpus[index].present:
                    hotplug.bind(state, self.root, index)
                elif index >= count and state.gpus[index].present:
                    hotplug.unbind(state, self.root, index)

    def reload_driver(self) -> None:
        """Unload the kernel module and load it again.

        Raises:
            RuntimeError: a process has NVML open; names it.
        """
        open_in = [pid for pid in sessions(self.root) if Path(f"/proc/{pid}").exists()]
        if open_in:
            raise RuntimeError(f"the module nvidia is in use by {', '.join(map(str, open_in))}: end them first")
        with self.state() as state:
            hotplug.reload_driver(state, self.root)

    def set_remapping(self, gpu: int, *, pending: bool = False, failure: bool = False) -> None:
        """Let memory rows wait for a reset to be replaced, or let none be left to replace them."""
        with self.state() as state:
            state.gpus[gpu].remap_pending, state.gpus[gpu].remap_failure = int(pending), int(failure)

    def set_fabric_health(self, gpu: int, mask: int) -> None:
        """Set the mask of fabric health, see NVML_GPU_FABRIC_HEALTH_MASK_*."""
        with self.state() as state:
            state.gpus[gpu].fabric_health_mask = mask

    def xid(
        self, gpu: int, number: int, *, gi: int = NO_INSTANCE, ci: int = NO_INSTANCE, recovery_action: int | None = None
    ) -> None:
        """Report an Xid on a GPU or a MIG instance."""
        with self.state() as state:
            faults.xid(state, gpu, number, gi=gi, ci=ci, recovery_action=recovery_action)

    def set_recovery_action(self, gpu: int, action: int) -> None:
        """Set what the GPU recommends in NVML field 230."""
        with self.state() as state:
            faults.set_recovery_action(state, gpu, action)

    def set_mig_pending(self, gpu: int, *, pending: bool) -> None:
        """Let a change of the GPU's MIG mode stay pending until a reset, or take effect at once."""
        with self.state() as state:
            state.gpus[gpu].mig_support = MIG_AFTER_RESET if pending else MIG_LIVE

    def set_links(self, gpu: int, *links: int, up: bool) -> None:
        """Let NVLinks of a GPU go down or come up; all of them where none are named.

        Raises:
            ValueError: the GPU does not have such a link.
        """
        with self.state() as state:
            set_links(state, gpu, links or None, up=up)

    def add_process(
        self,
        pid: int,
        gpu: int,
        *,
        memory: int,
        kind: int = PROCESS_COMPUTE,
        gi: int = NO_INSTANCE,
        ci: int = NO_INSTANCE,
        name: str = "workload",
        cgroup: str = "",
    ) -> None:
        """Let a process that exists hold ``memory`` bytes of a GPU; it is forgotten when it dies.

        Raises:
            RuntimeError: the table of processes is full.
        """
        with self.state() as state:
            slot = next((slot for slot in state.processes if not slot.used), None)
            if slot is None:
                raise RuntimeError(f"all {len(state.processes)} processes of the simulated node are in use")
            ctypes.memset(ctypes.addressof(slot), 0, ctypes.sizeof(slot))
            slot.pid, slot.gpu, slot.kind, slot.gi, slot.ci, slot.memory = pid, gpu, kind, gi, ci, memory
            slot.name, slot.cgroup = name.encode(), cgroup.encode()
            slot.used = 1

    def client(
        self,
        *commands: str,
        pipe: Path | None = None,
        gpus: Sequence[int] | None = None,
        cgroup: str | None = None,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> CudaClient:
        """Start a program that uses a GPU; use it as a context manager.

        Args:
            commands: what it does before it ends; without any it is told by :meth:`CudaClient.command`.
            pipe: MPS pipe directory that it follows; none without.
            gpus: indices of the GPUs whose device nodes it has, as in a container; all of them without.
            cgroup: the cgroup it counts as being in, below the cgroup root; its real one without.
            environment: further variables, such as CUDA_VISIBLE_DEVICES or CUDA_MPS_ACTIVE_THREAD_PERCENTAGE.
            user: uid to run as.
        """
        variables = {
            "DRA_GPU_SIM_ROOT": str(self.root),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.root / "no-pipe" if pipe is None else pipe),
        }
        if gpus is not None:
            variables["DRA_GPU_SIM_DEV"] = str(self._view(gpus))
        if cgroup is not None:
            variables["DRA_GPU_SIM_CGROUP"] = cgroup
        return CudaClient(self.cuda_client, commands, {**variables, **(environment or {})}, user)

    def clients(self) -> tuple[Client, ...]:
        """Every living process that computes on a GPU, and what binds it."""
        return clients(self.root)

    def _view(self, gpus: Sequence[int]) -> Path:
        """A /dev with the nodes of some GPUs alone."""
        view = self.root / "views" / "-".join(map(str, sorted(gpus)))
        if not view.is_dir():
            view.mkdir(parents=True)
            for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{self.gpus[gpu].minor}" for gpu in gpus)):
                (view / name).symlink_to(self.dev_root / name)
            (view / "nvidia-caps").symlink_to(self.dev_root / "nvidia-caps")
        return view

    def end_process(self, pid: int) -> None:
        """Let a process hold nothing any more."""
        with self.state() as state:
            for slot in in_use(state.processes):
                if slot.pid == pid:
                    slot.used = 0

    def reboot(self) -> None:
        """Do to the state what a reboot does: a new boot id; instances, modes, limits, processes and sessions gone."""
        self.boot_id_file.write_text(f"{uuid.uuid4()}\n")
        with self.state() as state:
            for table in (state.processes, state.sessions, state.limits):
                for slot in in_use(table):
                    slot.used = 0
            hotplug.reload_driver(state, self.root)

    def calls(self, name: str | None = None, *, gpu: int | None = None, pid: int | None = None) -> list[Call]:
        """The logged calls that match, in order; ``name`` may hold the wildcards of a shell."""
        return read_calls(self.calls_log, name=name, gpu=gpu, pid=pid)

    def forget_calls(self) -> None:
        """Empty the log."""
        os.truncate(self.calls_log, 0)

    def log_calls(self, *, on: bool) -> None:
        """Turn the log on or off."""
        with self.state() as state:
            state.log_calls = int(on)


def _remove(root: Path) -> None:
    for name in ("driver", "bin", "views", "dev", "proc", "sys", "gone"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("calls.log", "boot_id", "state"):
        (root / name).unlink(missing_ok=True)
    if not any(root.iterdir()):
        root.rmdir()
