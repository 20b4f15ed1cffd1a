"""Writes what the driver says about prepared devices into claims' status: later than the answer, never in its way.

Promises: the queue is bounded and holds one entry a claim, the newest; what was written is not written again; a claim
that is gone, was replaced or lost its devices is dropped; an API server that is away is waited for. What is lost is
counted, and said again by the next reconciliation of a restarted plugin.
Rights: `resourceclaims/status` patch, and `resourceclaims/driver` `associated-node:patch` for our driver's name.
Source: Kubernetes v1.37, pkg/registry/resource/resourceclaim (granular status authorization).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import structlog

from dra_gpu.api.claim_status_v1 import AllocatedDeviceStatus, Condition, claim_status
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.backoff import Backoff
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.resources import RESOURCE_CLAIMS

_log = structlog.get_logger(__name__)

_DeviceKey = tuple[str, str, str, str | None, str]


@dataclass(frozen=True, slots=True)
class StatusLimits:
    """Bounds, and their reasons.

    Attributes:
        pending: claims that wait; a node has far fewer.
        remembered: claims of which it is known what was written.
        attempts: tries before a claim is dropped; with the waits between them that is some minutes.
        first_wait, longest_wait: bounds of the exponential wait after failures, in seconds.
        deadline: of a request, in seconds.
    """

    pending: int = 1024
    remembered: int = 2048
    attempts: int = 10
    first_wait: float = 0.5
    longest_wait: float = 30.0
    deadline: float = 5.0


@dataclass(slots=True)
class _Pending:
    namespace: str
    name: str
    devices: tuple[AllocatedDeviceStatus, ...]
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class _Written:
    """What a claim's status says, without times, and since when each condition has its status."""

    devices: tuple[AllocatedDeviceStatus, ...]
    since: dict[_DeviceKey, tuple[str, str]]


class ClaimStatusWriter:
    """Writes the status of this driver's devices in claims.

    Args:
        api: the client; its field manager owns the entries, so that one apply has to name all of a claim's.
        limits: bounds.
        clock: monotonic time.
        now: wall-clock time for the conditions.
    """

    def __init__(
        self,
        api: KubernetesApi,
        *,
        limits: StatusLimits | None = None,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._limits = limits or StatusLimits()
        self._clock = clock or SystemClock()
        self._now = now
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._written: OrderedDict[str, _Written] = OrderedDict()
        self._backoff = Backoff(self._limits.first_wait, self._limits.longest_wait)
        self._wake = asyncio.Event()
        self._at_work = ""
        self.dropped = 0
        """How many statuses were lost: the queue was full, or the server refused them or was away for too long."""

    def put(self, namespace: str, name: str, uid: str, devices: Sequence[AllocatedDeviceStatus]) -> None:
        """Queue all that is to be said about the devices of a claim; returns at once.

        Args:
            namespace: of the claim.
            name: of the claim.
            uid: of the claim; another one of that name is left alone.
            devices: every device of ours; times of conditions are filled in.
        """
        said = tuple(devices)
        written = self._written.get(uid)
        if not name or not said:
            return
        if written is not None and written.devices == said and uid != self._at_work:
            self._pending.pop(uid, None)
        elif uid in self._pending:
            self._pending[uid].devices = said
        elif len(self._pending) >= self._limits.pending:
            self.dropped += 1
        else:
            self._pending[uid] = _Pending(namespace, name, said)
            self._wake.set()

    async def run(self) -> None:
        """Write what is queued, until cancelled."""
        while True:
            while not self._pending:
                self._wake.clear()
                await self._wake.wait()
            self._at_work, pending = self._pending.popitem(last=False)
            wait = await self._deliver(self._at_work, pending)
            self._at_work = ""
            if wait > 0:
                await self._clock.sleep(wait)

    async def _deliver(self, uid: str, pending: _Pending) -> float:
        """Write one claim's status; returns how long to wait before the next one."""
        written = self._stamped(uid, pending.devices)
        body = claim_status(pending.namespace, pending.name, uid, _with_times(written))
        try:
            await self._api.apply(
                RESOURCE_CLAIMS,
                body,
                pending.name,
                pending.namespace,
                subresource="status",
                deadline=self._limits.deadline,
            )
        except errors.ApiError as error:
            return self._failed(uid, pending, error)
        self._backoff.reset()
        self._written[uid] = written
        self._written.move_to_end(uid)
        while len(self._written) > self._limits.remembered:
            self._written.popitem(last=False)
        return 0.0

    def _failed(self, uid: str, pending: _Pending, error: errors.ApiError) -> float:
        claim = f"{pending.namespace}/{pending.name} ({uid})"
        if _is_over(error):
            _log.info("a claim is gone before its device status was written", claim=claim, reason=str(error))
            self._written.pop(uid, None)
            return 0.0
        pending.attempts += 1
        if not error.retryable or pending.attempts >= self._limits.attempts:
            _log.warning("a claim's device status is lost", claim=claim, reason=str(error))
            self.dropped += 1
            return self._backoff.next(error.retry_after) if error.retryable else 0.0
        self._pending.setdefault(uid, pending)  # something newer may wait by now
        return self._backoff.next(error.retry_after)

    def _stamped(self, uid: str, devices: tuple[AllocatedDeviceStatus, ...]) -> _Written:
        """Return what is going to be written: a condition that keeps its status keeps its time."""
        before = self._written.get(uid)
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        since: dict[_DeviceKey, tuple[str, str]] = {}
        for device in devices:
            for condition in device.conditions:
                key = _key(device, condition)
                known = before.since.get(key) if before is not None else None
                since[key] = known if known is not None and known[0] == condition.status else (condition.status, now)
        return _Written(devices, since)


def _is_over(error: errors.ApiError) -> bool:
    """Tell whether the claim is gone, or another one has its name by now."""
    replaced = isinstance(error, (errors.ConflictError, errors.InvalidError)) and "uid" in error.detail.lower()
    return replaced or isinstance(error, errors.NotFoundError)


def _with_times(written: _Written) -> list[AllocatedDeviceStatus]:
    return [
        msgspec.structs.replace(
            device,
            conditions=[
                msgspec.structs.replace(one, last_transition_time=written.since[_key(device, one)][1])
                for one in device.conditions
            ],
        )
        for device in written.devices
    ]


def _key(device: AllocatedDeviceStatus, condition: Condition) -> _DeviceKey:
    return device.driver, device.pool, device.device, device.share_id, condition.type
