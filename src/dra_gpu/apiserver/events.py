"""Kubernetes Events: what happened, told to whoever runs `kubectl describe`.

Promises: recording never blocks, never raises and never takes unbounded memory. The same thing said again within
ten minutes raises the count of one Event instead of making another. What cannot be delivered is dropped, counted and
logged: Events are a courtesy, the log is the record.
"""

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import msgspec
import structlog

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.backoff import Backoff
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.rate_limit import RateLimit
from dra_gpu.apiserver.resources import EVENTS

MAX_NOTE = 1024  # Source: K8s v1.37 pkg/apis/core/validation/events.go
_MAX_NAME_PART = 200

_log = structlog.get_logger(__name__)


class ObjectReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The object that an Event is about; nodes have no namespace, their Events live in `default`."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Bounds, and their reasons.

    Attributes:
        pending: different Events waiting to be sent.
        remembered: different Events whose counts can still be raised.
        window: seconds for which the same thing raises a count; what client-go's correlator uses.
        per_second, burst: requests; far below what the server grants a node.
        attempts: tries per Event before it is dropped.
        first_wait, longest_wait: bounds of the exponential wait after failures, in seconds.
    """

    pending: int = 256
    remembered: int = 512
    window: float = 600.0
    per_second: float = 2.0
    burst: int = 25
    attempts: int = 5
    first_wait: float = 0.5
    longest_wait: float = 30.0


class _Source(msgspec.Struct, omit_defaults=True):
    component: str
    host: str = ""


class _Meta(msgspec.Struct):
    name: str
    namespace: str


class _Event(msgspec.Struct, rename="camel"):
    """`core/v1` Event, which `kubectl describe` aggregates by `count`."""

    metadata: _Meta
    involved_object: ObjectReference
    type: str
    reason: str
    message: str
    source: _Source
    first_timestamp: str
    last_timestamp: str
    count: int
    reporting_component: str
    reporting_instance: str
    api_version: str = "v1"
    kind: str = "Event"


class _Repetition(msgspec.Struct, rename="camel"):
    count: int
    last_timestamp: str
    message: str


@dataclass(frozen=True, slots=True)
class _Key:
    regarding: ObjectReference
    type: str
    reason: str
    note: str


@dataclass(slots=True)
class _Pending:
    count: int
    first: datetime
    last: datetime
    attempts: int = 0


@dataclass(slots=True)
class _Sent:
    name: str
    count: int
    at: float


class EventRecorder:
    """Records Events of one component.

    Args:
        api: the client.
        component: shown by kubectl as "From".
        instance: the pod or node that speaks.
        limits: bounds.
        clock: monotonic time.
        now: wall-clock time for the Events' timestamps.
    """

    def __init__(
        self,
        api: KubernetesApi,
        component: str,
        instance: str,
        *,
        limits: EventLimits | None = None,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._component = component
        self._instance = instance
        self._limits = limits or EventLimits()
        self._clock = clock or SystemClock()
        self._now = now
        self._pending: OrderedDict[_Key, _Pending] = OrderedDict()
        self._sent: OrderedDict[_Key, _Sent] = OrderedDict()
        self._rate = RateLimit(self._clock, self._limits.per_second, self._limits.burst)
        self._backoff = Backoff(self._limits.first_wait, self._limits.longest_wait)
        self._wake = asyncio.Event()
        self.dropped = 0
        """How many Events were lost: the queue was full, the server refused them, or it was away for too long."""

    def record(self, regarding: ObjectReference, kind: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        """Queue an Event; returns at once. `reason` is a CamelCase word, `note` names object, reason and remedy."""
        key = _Key(regarding, kind, reason, _shorten(note))
        now = self._now()
        known = self._pending.get(key)
        if known is not None:
            known.count += 1
            known.last = now
        elif len(self._pending) >= self._limits.pending:
            self._drop(key, 1, f"{self._limits.pending} others wait to be sent")
        else:
            self._pending[key] = _Pending(1, now, now)
            self._wake.set()

    async def run(self) -> None:
        """Send what is queued, until cancelled."""
        while True:
            while not self._pending:
                self._wake.clear()
                await self._wake.wait()
            await self._rate.acquire()
            key, pending = self._pending.popitem(last=False)
            wait = await self._deliver(key, pending)
            if wait > 0:
                await self._clock.sleep(wait)

    async def _deliver(self, key: _Key, pending: _Pending) -> float:
        """Send one Event or raise its count; returns how long to wait before the next one."""
        try:
            await self._send(key, pending)
        except errors.NotFoundError:
            self._sent.pop(key, None)  # expired on the server, or its namespace is gone: start a new one
            return self._put_back(key, pending, 0.0)
        except errors.ApiError as error:
            if not error.retryable:
                self._drop(key, pending.count, str(error))
                return 0.0
            return self._put_back(key, pending, self._backoff.next(error.retry_after))
        self._backoff.reset()
        return 0.0

    def _put_back(self, key: _Key, pending: _Pending, wait: float) -> float:
        pending.attempts += 1
        again = self._pending.get(key)
        if pending.attempts >= self._limits.attempts:
            self._drop(key, pending.count, f"{pending.attempts} attempts failed")
        elif again is not None:
            again.count += pending.count
            again.first = pending.first
            again.attempts = pending.attempts
        else:
            self._pending[key] = pending
        return wait

    def _drop(self, key: _Key, count: int, why: str) -> None:
        self.dropped += count
        about = f"{key.regarding.kind} {key.regarding.namespace}/{key.regarding.name}"
        _log.warning("an Event is dropped", about=about, reason=key.reason, note=key.note, count=count, why=why)

    async def _send(self, key: _Key, pending: _Pending) -> None:
        namespace = key.regarding.namespace or "default"
        now = self._clock.now()
        sent = self._sent.get(key)
        if sent is not None and now - sent.at < self._limits.window:
            body = _Repetition(sent.count + pending.count, _stamp(pending.last), key.note)
            await self._api.patch(EVENTS, body, sent.name, namespace)
            self._remember(key, _Sent(sent.name, body.count, now))
            return
        name = _name(key, pending.first, self._instance)
        with contextlib.suppress(errors.AlreadyExistsError):  # the answer to an earlier try was lost, the Event not
            await self._api.create(EVENTS, self._body(key, pending, name, namespace), namespace)
        self._remember(key, _Sent(name, pending.count, now))

    def _remember(self, key: _Key, sent: _Sent) -> None:
        self._sent[key] = sent
        self._sent.move_to_end(key)
        while len(self._sent) > self._limits.remembered:
            self._sent.popitem(last=False)

    def _body(self, key: _Key, pending: _Pending, name: str, namespace: str) -> _Event:
        return _Event(
            metadata=_Meta(name, namespace),
            involved_object=key.regarding,
            type=key.type,
            reason=key.reason,
            message=key.note,
            source=_Source(self._component, self._instance),
            first_timestamp=_stamp(pending.first),
            last_timestamp=_stamp(pending.last),
            count=pending.count,
            reporting_component=self._component,
            reporting_instance=self._instance,
        )


def _shorten(note: str) -> str:
    encoded = note.encode("utf-8", "replace")  # a path that is no UTF-8 must not keep the rest from being told
    cut = encoded if len(encoded) <= MAX_NOTE else encoded[: MAX_NOTE - 3]
    return cut.decode("utf-8", "ignore") + ("…" if cut is not encoded else "")


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _name(key: _Key, first: datetime, instance: str) -> str:
    about = key.regarding
    parts = (about.kind, about.namespace, about.name, key.type, key.reason, key.note, instance, first.isoformat())
    text = "/".join(parts)
    return f"{about.name[:_MAX_NAME_PART].rstrip('.-')}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
