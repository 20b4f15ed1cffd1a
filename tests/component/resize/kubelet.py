"""The kubelet of a node in virtual time: prepares the claims of pods that are bound, and takes them back when they go.

In the kubelet's order: cgroup, Prepare, programs; then programs, Unprepare, cgroup, object. A pod that was deleted by
force is known to be gone a little later, when its claim has long been free. A Prepare that failed comes back after a
minute, or as soon as the pod changes. Sources: K8s v1.37 pkg/kubelet/cm/dra/manager.go; measured on a real cluster.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from grpclib.exceptions import GRPCError, StreamTerminatedError

from dra_gpu.claims.outcome import ClaimRef, Prepared
from dra_gpu.claims.shares import share_name
from dra_gpu_sim.local.cluster_objects import ClusterObjects, claim_names
from tests.component.resize.mortality import DeathError

#: What a call to a plugin ends with that has gone meanwhile.
_GONE = (LookupError, OSError, TimeoutError, GRPCError, StreamTerminatedError)


@dataclass(frozen=True)
class Times:
    """How long a kubelet takes, in seconds.

    Attributes:
        again: until a Prepare that failed is repeated.
        notices: until it knows of a pod that was deleted by force.
        grace: what a pod takes to end.
        absent: until a plugin that is not there is called again.
    """

    again: tuple[float, float] = (60.0, 90.0)
    notices: tuple[float, float] = (0.7, 2.3)
    grace: float = 1.0
    absent: float = 0.5


@dataclass
class RunningPod:
    """A pod that the kubelet knows.

    Attributes:
        uid: of the pod.
        namespace: of the pod.
        name: of the pod.
        claims: its claims.
        programs: what runs in it.
        prepared: its claims are prepared, and programs may start.
        devices: what the plugin has answered.
        refused: why its claim was refused last.
    """

    uid: str
    namespace: str
    name: str
    claims: list[ClaimRef]
    programs: list[Any] = field(default_factory=list)
    prepared: bool = False
    devices: list[Any] = field(default_factory=list)
    refused: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cgroup(self) -> str:
        return f"/kubepods/besteffort/pod{self.uid}"

    @property
    def share(self) -> str:
        """Name of the MPS share whose pipe its container has; empty without one."""
        return next((share_name(one.share_id) for one in self.devices if one.share_id), "")


class Kubelet:
    """The kubelet.

    Args:
        objects: of the API server.
        cgroups: makes and removes the pods' cgroups.
        engine: returns the claims engine of the plugin that is registered; None while none is.
        random: decides what nobody knows.
        times: how long it takes.
    """

    def __init__(
        self,
        objects: ClusterObjects,
        cgroups: Any,
        engine: Callable[[], Any],
        random: Random,
        times: Times | None = None,
    ) -> None:
        self._objects = objects
        self._cgroups = cgroups
        self._times = times or Times()
        self._engine = engine
        self._random = random
        self.pods: dict[str, RunningPod] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._unsubscribe = objects.api.store.subscribe(lambda _change: self._news.set())

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                self._news.clear()
                for pod in self._objects.all("pods"):
                    self._notice(pod)
                for known in self.pods.values():
                    known.changed.set()
                await self._news.wait()
        finally:
            self._unsubscribe()
            self._end_work()

    def reboot(self) -> None:
        """Start anew with what the kubelet has on disk: every pod is prepared again, or taken back."""
        self._end_work()
        for pod in self.pods.values():
            pod.prepared = False
            pod.programs.clear()
            self._work[pod.uid] = asyncio.create_task(self._serve(pod))

    def _end_work(self) -> None:
        for task in self._work.values():
            task.cancel()
        self._work.clear()

    def _notice(self, pod: Any) -> None:
        meta = pod["metadata"]
        if not pod["spec"].get("nodeName") or meta["uid"] in self.pods:
            return
        refs = self._refs(pod)
        if refs is not None:
            made = RunningPod(meta["uid"], meta["namespace"], meta["name"], refs)
            self.pods[meta["uid"]] = made
            self._work[made.uid] = asyncio.create_task(self._serve(made))

    async def _serve(self, pod: RunningPod) -> None:
        self._cgroups.make_cgroup(pod.uid, pod.cgroup)
        await self._prepare(pod)
        while self._wanted(pod):
            pod.changed.clear()
            await pod.changed.wait()
        forced = self._objects.find("pods", pod.namespace, pod.name) is None
        await asyncio.sleep(self._random.uniform(*self._times.notices) if forced else self._times.grace)
        pod.prepared = False
        for program in pod.programs:
            program.end()
        for ref in pod.claims:
            while await self._call("unprepare", ref) is not None:
                await asyncio.sleep(2 * self._times.absent)
        self._cgroups.remove_cgroup(pod.uid)
        del self.pods[pod.uid]
        self._work.pop(pod.uid, None)
        found = self._objects.find("pods", pod.namespace, pod.name)
        if found is not None and found["metadata"]["uid"] == pod.uid:
            self._objects.delete("pods", found)

    async def _prepare(self, pod: RunningPod) -> None:
        while self._wanted(pod) and not pod.prepared:
            mark = self._mark(pod)
            answers = [await self._call("prepare", ref) for ref in pod.claims]
            pod.prepared = all(isinstance(answer, Prepared) for answer in answers)
            if pod.prepared:
                pod.devices = [device for answer in answers for device in answer.devices]
                return
            pod.refused = "; ".join(answer.message for answer in answers if not isinstance(answer, Prepared))
            await self._wait_to_try_again(pod, mark)

    async def _wait_to_try_again(self, pod: RunningPod, mark: object) -> None:
        try:
            async with asyncio.timeout(self._random.uniform(*self._times.again)):
                while self._wanted(pod) and self._mark(pod) == mark:
                    pod.changed.clear()
                    await pod.changed.wait()
        except TimeoutError:
            return

    async def _call(self, method: str, ref: ClaimRef) -> Any:
        """Call the plugin; one that dies under the call, or is not there, is called again."""
        while True:
            engine = self._engine()
            if engine is not None:
                deadline = asyncio.get_running_loop().time() + 45.0
                try:
                    return (await getattr(engine, method)((ref,), deadline))[ref.uid]
                except (DeathError, *_GONE):
                    pass
            await asyncio.sleep(self._times.absent)

    def _wanted(self, pod: RunningPod) -> bool:
        found = self._objects.find("pods", pod.namespace, pod.name)
        return (
            found is not None and found["metadata"]["uid"] == pod.uid and not found["metadata"].get("deletionTimestamp")
        )

    def _mark(self, pod: RunningPod) -> object:
        found = self._objects.find("pods", pod.namespace, pod.name)
        return found and found["metadata"].get("annotations")

    def _refs(self, pod: Any) -> list[ClaimRef] | None:
        refs = []
        for name in claim_names(pod):
            claim = self._objects.find("resourceclaims", pod["metadata"]["namespace"], name)
            if claim is None:
                return None
            refs.append(ClaimRef(pod["metadata"]["namespace"], name, claim["metadata"]["uid"]))
        return refs
