"""Has the kubelet try again at once when a device that a pod waits for comes free.

A Prepare that fails comes back only after 60 to 90 s, whatever became of its reason meanwhile; a change of the pod's
annotations makes the kubelet call again at once (measured with a kubelet v1.37; a change of the pod's status or of the
claim does not). The node plugin knows when a device comes free for which it had to refuse a claim, and says so with an
Event of that claim. This loop hears of these Events and touches the pods that may use the claim and do not run yet.
Nothing depends on it: without it the kubelet tries again by itself, later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from dra_gpu.api.resource_v1 import ResourceClaim
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.reflector import Change, Reflector
from dra_gpu.apiserver.resources import EVENTS, PODS, RESOURCE_CLAIMS, Event, Pod
from dra_gpu.apiserver.work_queue import WorkQueue

REASON = "DeviceFree"
"""Of the Event with which the node plugin says that a claim may be prepared now."""
ANNOTATION = "resource.dra-gpu.dev/prepare-again"
"""Of the pod; its value is the time of the Event, so that each is answered once, whoever leads."""
STALE_SECONDS = 120.0
"""Of an Event; the kubelet has tried again by itself after so long."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Freed:
    """A claim for which a device came free.

    Attributes:
        namespace: of the claim.
        name: of the claim.
        uid: of the claim; another one of that name is left alone.
        at: when, as the Event has it.
    """

    namespace: str
    name: str
    uid: str
    at: str

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


class WaitingPods:
    """Hears of free devices and touches waiting pods.

    Args:
        api: the API server.
        drivers: names of our drivers; claims of others are left alone.
        may_write: whether this replica leads; asked before each write.
        now: wall-clock time, against that of Events.
    """

    def __init__(
        self,
        api: KubernetesApi,
        drivers: frozenset[str],
        may_write: Callable[[], bool] = lambda: True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._drivers = drivers
        self._may_write = may_write
        self._now = now
        self.queue: WorkQueue[Freed] = WorkQueue(self._wake)
        self.reflector = Reflector(
            api,
            EVENTS,
            Selection(field_selector=f"reason={REASON},involvedObject.kind=ResourceClaim"),
            on_change=self._heard,
            on_problem=lambda text: _log.info("the watch on Events broke and goes on", reason=text),
        )
        self.touched = 0
        """How many pods were touched."""

    def _heard(self, change: Change[Event]) -> None:
        event = change.after
        if event is None or event.reason != REASON or not event.last_timestamp:
            return
        if self._age(event.last_timestamp) > STALE_SECONDS:
            return
        about = event.involved_object
        self.queue.add(Freed(about.namespace, about.name, about.uid, event.last_timestamp))

    def _age(self, stamp: str) -> float:
        try:
            return (self._now() - datetime.fromisoformat(stamp)).total_seconds()
        except (ValueError, TypeError):
            return STALE_SECONDS + 1  # no time of this world: nothing that we wrote

    async def _wake(self, freed: Freed) -> float | None:
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, freed.name, freed.namespace)
        except errors.NotFoundError:
            return None
        if claim.metadata.uid != freed.uid or not self._is_ours(claim):
            return None
        for user in claim.status.reserved_for:
            if user.resource == "pods" and not user.api_group:
                await self._touch(freed, user.name, user.uid)
        return None

    def _is_ours(self, claim: ResourceClaim) -> bool:
        allocation = claim.status.allocation
        return allocation is not None and any(one.driver in self._drivers for one in allocation.devices.results)

    async def _touch(self, freed: Freed, name: str, uid: str) -> None:
        try:
            pod = await self._api.get(PODS, name, freed.namespace)
        except errors.NotFoundError:
            return
        if pod.metadata.uid != uid or not _waits(pod) or pod.metadata.annotations.get(ANNOTATION) == freed.at:
            return
        if not self._may_write():
            return  # the next leader has heard of it, too
        body = {"metadata": {"uid": uid, "annotations": {ANNOTATION: freed.at}}}
        try:
            await self._api.patch(PODS, body, name, freed.namespace)
        except (errors.NotFoundError, errors.ConflictError):
            return  # it has gone, or another one took its name
        self.touched += 1
        _log.info("a device came free: the kubelet tries again", pod=f"{freed.namespace}/{name}", claim=str(freed))


def _waits(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.status.phase == "Pending" and pod.metadata.deletion_timestamp is None
