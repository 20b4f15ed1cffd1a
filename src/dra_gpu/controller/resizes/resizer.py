"""The controller's loop over ClaimResizes: hears of what changes, looks at one resize at a time, does what comes next.

Watched are all ClaimResizes, and the claims and pods that stand in for growths, by their label; the claims that are
resized are read when something is decided, so that a cluster's many others cost nothing.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from dra_gpu.api.claim_resize import GROWTH_LABEL, ClaimResize, Phase, Target
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.reflector import Change, Reflector
from dra_gpu.apiserver.resources import CLAIM_RESIZES
from dra_gpu.apiserver.work_queue import WorkQueue
from dra_gpu.controller.resizes import objects
from dra_gpu.controller.resizes.changes import Changes, OutdatedError
from dra_gpu.controller.resizes.decide import OBSTACLE_SECONDS, decide
from dra_gpu.controller.resizes.free import FreeAmounts
from dra_gpu.controller.resizes.objects import CLAIMS, PODS, Claim, Pod
from dra_gpu.controller.resizes.starting import Rules
from dra_gpu.controller.resizes.steps import Rest
from dra_gpu.controller.resizes.view import View
from dra_gpu.inventory.amounts import Amounts

_MOST_STEPS: Final = 32
_OUTDATED_SECONDS: Final = 0.1
_FOR_EVER: Final = 2**31
_MOST_QUIET: Final = 8
_LONGEST_SECONDS: Final = 60.0
_REMEMBERED: Final = 1024

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A ClaimResize, which has the name of its claim."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Why a growth was not let in, of which generation of the object, and when."""

    text: str
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class _Wish:
    """A generation of an object, and since when it is not in force; None once it was."""

    generation: int
    since: float | None


class Resizer:
    """Works on all ClaimResizes of a cluster.

    Args:
        api: the API server.
        rules: what the operator chose.
        image: of placeholder pods.
        may_write: whether this replica leads; asked before each write.
        on_applied: called with the seconds from when a wish was first seen until it was in force.
        clock: monotonic time.
    """

    def __init__(
        self,
        api: KubernetesApi,
        rules: Rules,
        image: str,
        may_write: Callable[[], bool] = lambda: True,
        on_applied: Callable[[float], None] = lambda _seconds: None,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._rules = rules
        self._changes = Changes(api, image, may_write)
        self._clock = clock or SystemClock()
        self._free = FreeAmounts(api, self._clock)
        self._obstacles: dict[Key, _Obstacle] = {}
        self._on_applied = on_applied
        self._wishes: dict[Key, _Wish] = {}
        self._quiet: dict[Key, int] = {}
        self._outdated: dict[Key, int] = {}
        self._requests: OrderedDict[Key, str] = OrderedDict()
        self.queue: WorkQueue[Key] = WorkQueue(self.look, attempts=_FOR_EVER, clock=clock)
        labelled = Selection(label_selector=GROWTH_LABEL)
        self.resizes = Reflector(
            api, CLAIM_RESIZES, on_change=self._heard_of_resize, on_problem=_broke("ClaimResizes"), clock=clock
        )
        self.growing = Reflector(
            api, CLAIMS, labelled, on_change=self._heard_of_growth, on_problem=_broke("growths"), clock=clock
        )
        self.pods = Reflector(
            api, PODS, labelled, on_change=self._heard_of_pod, on_problem=_broke("pods of growths"), clock=clock
        )
        self.lost_nodes: frozenset[str] = frozenset()
        """Names of nodes that do not exist any more."""

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in (self.resizes, self.growing, self.pods):
                group.create_task(reflector.run())
            for reflector in (self.resizes, self.growing, self.pods):
                await reflector.synced.wait()
            group.create_task(self.queue.run())

    async def look(self, key: Key) -> float | None:
        """Look at one resize and do what can be done; returns seconds after which to look again.

        Raises:
            ApiError: the API server did not answer, or refused.
        """
        try:
            again = await self._look(key)
        except OutdatedError:
            if (key.namespace, key.name) not in self.resizes.objects:
                self._outdated.pop(key, None)
                return None
            times = self._outdated[key] = min(self._outdated.get(key, 0) + 1, _MOST_QUIET)
            return _OUTDATED_SECONDS * (1 << (times - 1))  # what is in the way may stay: a claim that does not end
        self._outdated.pop(key, None)
        return again

    @property
    def growths(self) -> Counter[str]:
        """How many growths were asked for, granted by the scheduler, and not let in by the API server."""
        return self._changes.growths

    def phases(self) -> dict[Phase, int]:
        """Return how many resizes there are in each phase."""
        counted = dict.fromkeys(Phase, 0)
        for one in self.resizes.objects.values():
            counted[one.status.phase] += 1
        return counted

    async def _look(self, key: Key) -> float | None:
        resize = self.resizes.objects.get((key.namespace, key.name))
        if resize is None:
            self._obstacles.pop(key, None)
            self._wishes.pop(key, None)
            self._quiet.pop(key, None)
            return await self._look_for_leftovers(key)
        view = self._view(resize, await self._claim(key))
        self._time(key, resize)
        for done in range(_MOST_STEPS):
            if any(objects.unschedulable(pod) is not None for pod in view.pods):
                view = replace(view, free=await self._left(view.target))
            step = decide(view, self._rules)
            if isinstance(step, Rest):
                return self._again(key, step.again, quiet=done == 0)
            view = await self._changes.do(view, step)
            self._time(key, view.resize)
            if view.obstacle and key not in self._obstacles:
                self._obstacles[key] = _Obstacle(view.obstacle, view.resize.metadata.generation, self._clock.now())
        _log.error("a resize does not come to rest", resize=str(key), steps=_MOST_STEPS)
        return _OUTDATED_SECONDS

    async def _left(self, target: Target | None) -> Amounts | None:
        """Return what a device has left; nothing waits for it, since it is only said."""
        try:
            return await self._free.of(target) if target is not None else None
        except errors.ApiError as error:
            _log.info("what is free cannot be told", reason=str(error))
            return None

    def _view(self, resize: ClaimResize, claim: Claim | None) -> View:
        target = resize.status.target
        claim_uid = target.claim_uid if target is not None else claim.metadata.uid if claim is not None else ""
        growths = [one for one in self.growing.objects.values() if _is_of(one, resize, claim_uid)]
        pods = [one for one in self.pods.objects.values() if _is_of(one, resize, claim_uid)]
        lost = resize.status.node_name in self.lost_nodes
        return View(resize, claim, tuple(growths), tuple(pods), lost=lost, obstacle=self._obstacle(resize))

    def _again(self, key: Key, seconds: float | None, *, quiet: bool) -> float | None:
        """Return when to look again: the longer nothing was to be done, the later."""
        if seconds is None or not quiet:
            self._quiet.pop(key, None)
            return seconds
        looks = self._quiet[key] = min(self._quiet.get(key, 0) + 1, _MOST_QUIET)
        return min(seconds * (1 << (looks - 1)), max(seconds, _LONGEST_SECONDS))

    def _time(self, key: Key, resize: ClaimResize) -> None:
        """Measure how long a wish takes."""
        wish, generation = self._wishes.get(key), resize.metadata.generation
        applied = resize.status.phase is Phase.APPLIED and resize.status.observed_generation == generation
        if wish is None or wish.generation != generation:
            self._wishes[key] = _Wish(generation, None if applied else self._clock.now())
        elif applied and wish.since is not None:
            self._wishes[key] = _Wish(generation, None)
            self._on_applied(self._clock.now() - wish.since)

    def _obstacle(self, resize: ClaimResize) -> str:
        """Return what was in the way of a growth a moment ago: nobody asks again at once."""
        key = Key(resize.metadata.namespace, resize.metadata.name)
        found = self._obstacles.get(key)
        if found is None:
            return ""
        if found.generation != resize.metadata.generation or self._clock.now() - found.at >= OBSTACLE_SECONDS:
            del self._obstacles[key]
            return ""
        return found.text

    async def _claim(self, key: Key) -> Claim | None:
        try:
            return await self._api.get(CLAIMS, key.name, key.namespace)
        except errors.NotFoundError:
            return None

    async def _look_for_leftovers(self, key: Key) -> float | None:
        """Make a resize again for which something is kept, though it is not there."""
        try:
            await self._api.get(CLAIM_RESIZES, key.name, key.namespace)
        except errors.NotFoundError:
            pass
        else:
            return None  # the watch will tell
        claim = await self._claim(key)
        growths = [one for one in self.growing.objects.values() if one.metadata.namespace == key.namespace]
        held = [one for one in growths if objects.owner(one.metadata) == key.name and objects.is_held(one, key.name)]
        entered = claim is not None and any(objects.is_entry(one, key.name) for one in claim.status.reserved_for)
        if entered or held:
            await self._changes.restore(key.namespace, key.name, self._requests.get(key))
        return None

    def _heard_of_resize(self, change: Change[ClaimResize]) -> None:
        one = change.after or change.before
        assert one is not None
        key = Key(one.metadata.namespace, one.metadata.name)
        if change.after is None and one.spec.request:
            self._requests[key] = one.spec.request
            self._requests.move_to_end(key)
            if len(self._requests) > _REMEMBERED:
                self._requests.popitem(last=False)
        self.queue.add(key)

    def _heard_of_growth(self, change: Change[Claim]) -> None:
        self._heard(change.after or change.before)

    def _heard_of_pod(self, change: Change[Pod]) -> None:
        self._heard(change.after or change.before)

    def _heard(self, one: Claim | Pod | None) -> None:
        assert one is not None
        name = objects.owner(one.metadata)
        if name is not None:
            self.queue.add(Key(one.metadata.namespace, name))


def _is_of(one: Claim | Pod, resize: ClaimResize, claim_uid: str) -> bool:
    meta = one.metadata
    return meta.namespace == resize.metadata.namespace and meta.labels.get(GROWTH_LABEL) == claim_uid


def _broke(what: str) -> Callable[[str], None]:
    return lambda text: _log.info("a watch broke and goes on", watched=what, reason=text)
