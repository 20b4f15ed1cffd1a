"""Resets a GPU when an administrator asks for it.

Who asks has taken the GPU out of service by DeviceTaintRules, waits until no claim has it, and labels one of the rules
with an id (`api.cordon`). The node takes the GPU's lock, under which no claim is prepared on it, looks into its
journal, resets, and answers by an Event of the Node that names the id. It only reads rules.

Promises: a GPU that a claim holds is not reset; a request is carried out once, also over a restart; of two instances
that run in an upgrade the one that publishes acts; every request that reaches this node is answered, for some minutes
again and again while it stands: an Event may get lost, and who asks takes the request away when he has the answer.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from dra_gpu.api import cordon
from dra_gpu.api.cordon import ResetAnswer
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule
from dra_gpu.apiserver.clock import SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.reflector import Reflector, ReflectorLimits
from dra_gpu.apiserver.resources import DEVICE_TAINT_RULES
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.locks import GpuLocks, LockTimeoutError
from dra_gpu.claims.preparation import Identity
from dra_gpu.claims.record import Access, Record
from dra_gpu.inventory import naming
from dra_gpu.inventory.devices import Inventory
from dra_gpu.inventory.model import Gpu
from dra_gpu.node.reset_log import Entry, ResetLog
from dra_gpu.vendors.base import FailureKind, Vendor, VendorError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ResetTimes:
    """Seconds, and their reasons.

    Attributes:
        lock: until the GPU's lock is free; a step of a claim that is being ended takes less.
        free: until whoever is just ending has let go: a killed process, or the kubelet's Unprepare of a pod that was
            deleted by force.
        again: between two tries while somebody lets go.
        idle: between two looks at requests that are another instance's affair; it may end.
        longest: that a reset by another instance is waited for.
        unserved: at most between two tries where the API server has no such rules; who asks waits for longer.
        repeat: between two answers to a request that still stands.
        repeats: so often an answer is repeated; who asks waits for four minutes.
    """

    lock: float = 30.0
    free: float = 10.0
    again: float = 0.5
    idle: float = 2.0
    longest: float = 180.0
    unserved: float = 120.0
    repeat: float = 20.0
    repeats: int = 12


@dataclass(slots=True)
class _Answered:
    """An answer that was given, and how often it is repeated yet."""

    answer: ResetAnswer
    left: int


@dataclass(slots=True)
class GpuResets:
    """Carries out the requests for this node, one after the other.

    Attributes:
        api: where rules are read.
        identity: our driver and pool.
        vendor: resets.
        inventory: returns what the node offers.
        looked: set when the GPUs have been looked at once.
        locks: those of GPUs, shared with other instances.
        records: returns the claims of this node.
        boot_id: of this boot.
        may_act: whether this instance is the one that acts.
        log: what was begun.
        answer: takes each answer, to be told as an Event of the Node.
        on_reset: told each GPU that was reset, or may have been.
        on_done: told each that was reset and answers again.
        times: how long is waited for what.
        counts: how often, by UUID and `done` or `failed`.
    """

    api: KubernetesApi
    identity: Identity
    vendor: Vendor
    inventory: Callable[[], Inventory]
    looked: asyncio.Event
    locks: GpuLocks
    records: Callable[[], Awaitable[Sequence[Record]]]
    boot_id: str
    may_act: Callable[[], bool]
    log: ResetLog
    answer: Callable[[ResetAnswer], None]
    on_reset: Callable[[Gpu], None]
    times: ResetTimes = field(default_factory=ResetTimes)
    on_done: Callable[[Gpu], None] = lambda _gpu: None
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _answered: dict[str, "_Answered"] = field(default_factory=dict)
    _complaint: str = ""

    async def run(self) -> None:
        """Carry out requests until cancelled."""
        await self.looked.wait()
        wake, clock = asyncio.Event(), SystemClock()
        reflector = Reflector(
            self.api,
            DEVICE_TAINT_RULES,
            Selection(label_selector=cordon.RESET_LABEL),
            on_change=lambda _change: wake.set(),
            on_problem=self._complain,
            limits=ReflectorLimits(longest_wait=self.times.unserved),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run())
            while True:
                wake.clear()
                waiting = [rule for rule in list(reflector.objects.values()) if self._is_new(rule)]
                standing = {_request(rule) for rule in reflector.objects.values()}
                self._answered = {request: one for request, one in self._answered.items() if request in standing}
                if waiting and self.may_act():
                    for rule in waiting:
                        await self.handle(rule)
                elif waiting:
                    await clock.sleep(self.times.idle)
                elif any(one.left for one in self._answered.values()):
                    await self._wait_or_repeat(wake)
                else:
                    await wake.wait()

    async def handle(self, rule: DeviceTaintRule) -> None:
        """Carry out one request, and answer it."""
        request = _request(rule)
        if self.log.find(request) is None:
            answer = await self._begin(request, rule)
        else:
            answer = await self._begun_before(request, rule)
        self._answered[request] = _Answered(answer, self.times.repeats)
        self.answer(answer)
        _log.info("a reset was asked for", request=request, done=answer.done, result=answer.text)

    async def _wait_or_repeat(self, wake: asyncio.Event) -> None:
        """Wait for something new; answer again what still stands when nothing has come."""
        try:
            async with asyncio.timeout(self.times.repeat):
                await wake.wait()
        except TimeoutError:
            for one in self._answered.values():
                if one.left:
                    one.left -= 1
                    self.answer(one.answer)

    def _is_new(self, rule: DeviceTaintRule) -> bool:
        selector = rule.spec.device_selector
        mine = selector is not None and (selector.driver, selector.pool) == (self.identity.driver, self.identity.pool)
        return mine and cordon.is_reset_id(_request(rule)) and _request(rule) not in self._answered

    async def _begin(self, request: str, rule: DeviceTaintRule) -> ResetAnswer:
        found = self._gpu(rule)
        if isinstance(found, str):
            return ResetAnswer(request, done=False, text=found)
        try:
            await asyncio.to_thread(self.log.note, request, Entry())
            answer = ResetAnswer(request, done=True, text=await self._reset(request, found))
        except (VendorError, JournalError, LockTimeoutError, OSError) as error:
            answer = ResetAnswer(request, done=False, text=f"{found.uuid} was not reset: {error}")
        except Exception as error:  # noqa: BLE001 - who asks gets an answer, and claims go on being served
            _log.error("a reset failed in an unexpected way", request=request, exc_info=error)
            text = f"internal error {type(error).__name__}: see the node plugin's log"
            answer = ResetAnswer(request, done=False, text=f"{found.uuid} may not have been reset: {text}")
        finally:
            self.on_reset(found)
        if answer.done:
            self.on_done(found)
        self.counts[found.uuid, "done" if answer.done else "failed"] += 1
        try:
            await asyncio.to_thread(self.log.note, request, Entry(answer.reason, answer.text))
        except OSError as error:
            _log.warning("it cannot be kept that a reset has ended", request=request, reason=str(error))
        return answer

    async def _begun_before(self, request: str, rule: DeviceTaintRule) -> ResetAnswer:
        """Return what became of a reset that an earlier instance began, or one that is still at it."""
        found = self._gpu(rule)
        if isinstance(found, Gpu):
            until = asyncio.get_running_loop().time() + self.times.longest
            with suppress(LockTimeoutError, OSError):
                async with self.locks.hold((naming.slot(found),), f"reset {request}", until):
                    pass
        entry = self.log.find(request)
        if entry is not None and entry.reason:
            return ResetAnswer(request, entry.reason == cordon.RESET_DONE, entry.note)
        text = "the node plugin was restarted in the middle of it: look at the GPU, then ask for another reset"
        return ResetAnswer(request, done=False, text=text)

    def _gpu(self, rule: DeviceTaintRule) -> Gpu | str:
        """Return the GPU that is meant, or why there is none."""
        name = rule.spec.device_selector.device if rule.spec.device_selector is not None else ""
        device = self.inventory().devices.get(name)
        meant = rule.metadata.annotations.get(cordon.GPU_ANNOTATION, "")
        if device is None:
            return (
                f"node {self.identity.pool} has no device {name!r} now: `kubectl gpu list --node {self.identity.pool}`"
            )
        if meant and device.gpu.uuid != meant:
            return f"device {name} is GPU {device.gpu.uuid} now, and {meant} was meant: list the GPUs, then ask again"
        return device.gpu

    async def _reset(self, request: str, gpu: Gpu) -> str:
        """Reset a GPU; returns what to tell.

        Raises:
            VendorError: a claim holds it, or it could not be reset.
            JournalError, LockTimeoutError: it cannot be told whether a claim holds it.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        patient_until = started + self.times.free
        while True:
            async with self.locks.hold((naming.slot(gpu),), f"reset {request}", loop.time() + self.times.lock):
                try:
                    await self._check_free(gpu)
                    begun = loop.time()
                    await self.vendor.reset_gpu(gpu)
                except VendorError as error:
                    if error.kind is not FailureKind.IN_USE or loop.time() >= patient_until:
                        raise
                else:
                    gone = _gone_with_it(gpu)
                    return f"{gpu.uuid} was reset within {loop.time() - begun:.1f} s and answers again{gone}"
            await asyncio.sleep(self.times.again)  # without the lock: whoever lets go needs it

    async def _check_free(self, gpu: Gpu) -> None:
        holders = [
            f"{record.ref} ({hold.device})"
            for record in await self.records()
            if record.boot_id == self.boot_id
            for hold in record.holds
            if hold.gpu == gpu.uuid and hold.access is not Access.OBSERVER
        ]
        if holders:
            raise VendorError(
                FailureKind.IN_USE,
                f"claims have it on this node: {', '.join(holders[:5])}{' and more' if len(holders) > 5 else ''}; end "  # noqa: PLR2004 - enough to find the others
                "their pods, then ask again",
            )

    def _complain(self, problem: str) -> None:
        if problem != self._complaint:  # once, not with every try: before Kubernetes 1.37 there are no such rules
            self._complaint = problem
            _log.info("requests to reset GPUs cannot be read", reason=problem)


def _request(rule: DeviceTaintRule) -> str:
    return rule.metadata.labels.get(cordon.RESET_LABEL, "")


def _gone_with_it(gpu: Gpu) -> str:
    """Say what a reset has destroyed that no claim had made; who made it may want to make it again."""
    count = len(gpu.mig_instances)
    return f"; its {count} MIG instance{'s' if count > 1 else ''} went with it" if count else ""
