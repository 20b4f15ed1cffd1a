"""The same cluster with real processes: node plugin, MPS service and its daemons, controller, programs on the GPU.

API server, scheduler and controllers of Kubernetes are those of the local mode, in the process of the test; the kubelet
speaks gRPC with the plugin. Time is real, so that nothing is waited for as long as by a kubelet.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Self

from dra_gpu.claims.outcome import Prepared, PreparedDevice, Refusal, RefusalKind
from dra_gpu_sim.client import ClientError, CudaClient
from dra_gpu_sim.local import containers
from dra_gpu_sim.local.cluster import DRIVER
from dra_gpu_sim.local.containers import UnresolvableError
from dra_gpu_sim.local.controlplane import ControlPlane
from dra_gpu_sim.local.kubelet import Claim
from dra_gpu_sim.local.plugin import PluginProcess
from dra_gpu_sim.local.pods import LocalPod
from tests.component.node.sharing import VIEWS, Sharing
from tests.component.resize.kubelet import Kubelet, Times
from tests.component.resize.objects import Objects

CONTROLLER = (
    "controller",
    "--pod-name=controller",
    "--allow-growth=Any",
    "--leader-election-lease-duration=3",
    "--leader-election-renew-deadline=2",
    "--leader-election-retry-period=0.2",
)
QUICK = Times(again=(0.5, 1.5), notices=(0.05, 0.4), grace=0.05, absent=0.1)


class RealProgram:
    """A program that uses the GPU as one in a container would."""

    def __init__(self, client: CudaClient) -> None:
        self._client = client

    @property
    def running(self) -> bool:
        return self._client.running

    def allocate(self, size: int) -> bool:
        return self._tell(f"alloc {size >> 20}M").startswith("ok")

    def free(self, size: int) -> None:
        if not self._tell(f"free {size >> 20}M").startswith("ok"):
            self._tell("free")

    def end(self) -> None:
        self._client.__exit__(None, None, None)

    def _tell(self, command: str) -> str:
        try:
            return self._client.command(command) if self.running else ""
        except (ClientError, OSError):  # it has ended meanwhile
            return ""


class RealWorld:
    """The cluster.

    Args:
        sharing: node plugin and MPS service, which run, on one GPU.
        seed: of what is random.
    """

    def __init__(self, sharing: Sharing, seed: int) -> None:
        self.sharing = sharing
        self.cluster, self.node = sharing.cluster, sharing.node
        self.random = Random(seed)
        self.plane = ControlPlane(self.cluster.api, self.cluster.node_name)
        self.objects = Objects(self.cluster.api, self.node)
        self.kubelet = Kubelet(self.plane.objects, self, self.engine, self.random, QUICK)
        self.controller = PluginProcess(self.cluster.root / "controller.log")
        self._serving = True
        self._stack = AsyncExitStack()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def __aenter__(self) -> Self:
        self.objects.hardware = self.objects.published()
        await self._stack.enter_async_context(self.plane.running())
        self._stack.callback(self.plane.close)
        self._stack.push_async_callback(self._stop_controller)
        await self.start_controller()
        kubelet = asyncio.create_task(self.kubelet.run())
        self._stack.push_async_callback(_cancelled, kubelet)
        self._stack.callback(self._end_programs)
        return self

    async def __aexit__(self, *_exception) -> None:
        await self._stack.aclose()

    def engine(self):
        return self if self._serving else None

    async def prepare(self, refs, deadline: float):
        within = deadline - asyncio.get_running_loop().time()
        claims = [Claim(ref.namespace, ref.name, ref.uid) for ref in refs]
        answers = await self.sharing.kubelet.prepare(*claims, driver=DRIVER, within=within)
        return {uid: _told(answer.error, answer.devices) for uid, answer in answers.items()}

    async def unprepare(self, refs, deadline: float):
        within = deadline - asyncio.get_running_loop().time()
        claims = [Claim(ref.namespace, ref.name, ref.uid) for ref in refs]
        errors = await self.sharing.kubelet.unprepare(*claims, driver=DRIVER, within=within)
        return {uid: _told(error, ()) if error else None for uid, error in errors.items()}

    def make_cgroup(self, pod: str, cgroup: str) -> None:
        with suppress(FileExistsError):
            made = self.cluster.paths.make_pod_cgroup(pod)
            assert made == cgroup

    def remove_cgroup(self, pod: str) -> None:
        (self.cluster.paths.cgroups / "kubepods" / "besteffort" / f"pod{pod}").rmdir()

    async def attach(self, pod) -> bool:
        """Let a program of a prepared pod attach to its share; tell whether it was let in."""
        ids = [one for device in pod.devices for one in device.cdi_ids]
        try:
            container = containers.with_devices(self.cluster.paths.cdi, ids)
        except (UnresolvableError, FileNotFoundError):
            return False  # its file is being written anew
        local = LocalPod(self.cluster, pod.name, pod.claims[0], (), container, pod.cgroup)
        client = await asyncio.to_thread(local.client)
        try:
            attached = (await asyncio.to_thread(lambda: client.attached)).startswith("attached")
        except ClientError:
            attached = False
        if not attached or not pod.prepared:  # its pod may have gone meanwhile
            client.__exit__(None, None, None)
            return False
        pod.programs.append(RealProgram(client))
        return True

    def programs(self):
        return [one for pod in self.kubelet.pods.values() if pod.prepared for one in pod.programs if one.running]

    def check(self) -> None:
        """Assert what must be true at every moment."""
        self.objects.check()

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something in so many seconds."""
        asyncio.get_running_loop().call_later(seconds, what)

    def release_slices(self) -> None:
        self.plane.scheduler.release_slices()
        self.plane.wake()

    def let_bind(self) -> None:
        self.plane.binds = True
        self.plane.wake()

    async def start_controller(self) -> None:
        await self.controller.start([*CONTROLLER, f"--kubeconfig={self.cluster.kubeconfig}"])

    async def restart_controller(self) -> None:
        """Kill the controller as a power cut would, and start it again."""
        await self.controller.kill()
        await self.start_controller()

    async def restart_plugin(self, *, lose_journal: bool = False) -> None:
        """Kill the node plugin as a power cut would, and start it again."""
        self._serving = False
        await self.sharing.world.plugin.kill()
        if lose_journal:
            for path in self.cluster.paths.state.glob("journal.db*"):
                path.unlink()
        self.sharing.kubelet.restart()
        await self.sharing.world.start(VIEWS)
        self._serving = True

    def kill_mps_service(self) -> None:
        """Kill the MPS service; its supervisor starts it again, and its daemons go on."""
        os.kill(self.sharing.server_pid, signal.SIGKILL)

    def kill_mps_daemon(self) -> None:
        """Kill the GPU's control daemon, and with it every program that uses it."""
        for pid in self.sharing.daemon_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def reboot(self) -> None:
        """End everything on the node; what is on its disk stays."""
        self._serving = False
        self._end_programs()
        await self.sharing.reboot()
        self.kubelet.reboot()
        await self.sharing.start()
        self._serving = True

    def _end_programs(self) -> None:
        for pod in self.kubelet.pods.values():
            for program in pod.programs:
                program.end()

    async def _stop_controller(self) -> None:
        await self.controller.kill()


def _told(error: str, devices):
    if error:
        return Refusal(error, retryable=True, kind=RefusalKind.HELD)
    return Prepared(
        tuple(PreparedDevice(it.request_names, it.pool, it.device, it.cdi_ids, it.share_id) for it in devices)
    )


async def _cancelled(task: asyncio.Task) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
