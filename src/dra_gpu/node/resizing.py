"""Follows the ClaimResizes of this node, and the shares that were resized before.

Objects come by a watch, selected by their node. A share is visited when its object or its claim changes, when the
server has what was published for it, by and by while a workload keeps a limit from holding, and from time to time. Only
the instance that publishes does any of this; what it had begun, the next one finds in the journal.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from dra_gpu.api.claim_resize import ClaimResize, NodeStatus
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import KubernetesApi, Selection
from dra_gpu.apiserver.reflector import Change, Reflector
from dra_gpu.apiserver.resources import CLAIM_RESIZES
from dra_gpu.apiserver.work_queue import WorkQueue
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.locks import LockTimeoutError
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.ports import ClaimReadError
from dra_gpu.claims.resize.resizing import Resizing, Visit
from dra_gpu.claims.resize.state import ShareKey
from dra_gpu.inventory.amounts import Amounts
from dra_gpu.node.claim_adapters import READ_SECONDS
from dra_gpu.node.publishing import Publishing
from dra_gpu.node.telling import Kind

TICK_SECONDS = 10.0
"""Between two visits of everything: the other instance of an upgrade unprepares claims without telling this one."""
_FIRST_LOOK = 0.25  # seconds after which it is looked again whether a workload has let go
_LONGEST_LOOK = 4.0
_SLOWER = 1.5
_WORKERS = 4
_NO_ROOM = "ShareNotFree"
_NOT_PREPARED = "NotPrepared"  # the pod's own events say why

_log = structlog.get_logger(__name__)


class ApiResizeReader:
    """Reads ClaimResizes from the API server.

    Args:
        api: the API server.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> ClaimResize | None:
        """See `claims.ports.ResizeReader.get`."""
        try:
            return await self._api.get(CLAIM_RESIZES, name, namespace, deadline=READ_SECONDS)
        except errors.NotFoundError:
            return None
        except errors.ApiError as error:
            raise ClaimReadError(str(error), retryable=error.retryable) from error


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears of resizes.

    Attributes:
        event: of a claim: kind, reason and note.
        took: seconds from the wish to the limit.
    """

    event: Callable[[ClaimRef, Kind, str, str], None]
    took: Callable[[float], None] = lambda _seconds: None


async def offered(journal: Journal) -> dict[ShareKey, Amounts]:
    """Return what is published beyond the hardware, as the journal has it.

    Raises:
        JournalError: it cannot be read.
    """
    return {resize.key: resize.offered for resize in await journal.resizes()}


class NodeResizes:
    """The resizes of this node.

    Args:
        api: the API server.
        node_name: name of this node.
        journal: which shares were resized before.
        resizing: does it.
        publishing: tells whether this is the instance that does, and when the server has what is offered.
        ready: set once the journal knows what containers hold.
        listeners: who hears of it.
    """

    def __init__(
        self,
        api: KubernetesApi,
        node_name: str,
        *,
        journal: Journal,
        resizing: Resizing,
        publishing: Publishing,
        ready: asyncio.Event,
        listeners: Listeners,
    ) -> None:
        self._api = api
        self._journal = journal
        self._resizing = resizing
        self._publishing = publishing
        publishing.on_acknowledged = self.acknowledged
        self._ready = ready
        self._listeners = listeners
        self._reflector = Reflector(
            api,
            CLAIM_RESIZES,
            Selection(field_selector=f"status.nodeName={node_name}"),
            on_change=self._on_change,
            on_problem=self._on_problem,
        )
        self._queue: WorkQueue[ShareKey] = WorkQueue(self._work, workers=_WORKERS)
        self._objects: dict[ShareKey, tuple[str, str]] = {}
        self._looks: dict[ShareKey, float] = {}
        self._asked: dict[ShareKey, tuple[Amounts, float]] = {}
        self.reasons: dict[ShareKey, str] = {}
        """Why shares are not as wanted; empty where they are."""
        self._problem = ""

    @property
    def watch_age(self) -> float | None:
        """Seconds since the server was last heard of about ClaimResizes; None where it may not know the kind at all."""
        return self._reflector.age if self._reflector.synced.is_set() else None

    @property
    def dropped(self) -> int:
        """How many visits were given up; the next round makes up for them."""
        return self._queue.dropped

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name="resize-reflector")
            group.create_task(self._follow(), name="resizes")

    def claim_changed(self, uid: str) -> None:
        """Visit the shares of a claim that was prepared, or unprepared, and those that want its place."""
        known = {*self._objects, *self._looks}
        for key in [key for key in known if key.uid == uid or self.reasons.get(key) == _NO_ROOM]:
            self._queue.add(key)

    def acknowledged(self) -> None:
        """Visit all shares: the server has what was published."""
        for key in {*self._objects, *self._looks}:
            self._queue.add(key)

    async def _follow(self) -> None:
        await self._ready.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(), name="resize-queue")
            while True:
                try:
                    await self._visit_all()
                except JournalError as error:  # a disk that is full or gone may come back
                    _log.error("resizes cannot be looked at now", reason=str(error))
                await asyncio.sleep(TICK_SECONDS)

    async def _visit_all(self) -> None:
        known = {one.key for one in await self._journal.kept()}
        for key in known | self._objects.keys():
            self._looks.setdefault(key, _FIRST_LOOK)
            self._queue.add(key)
        for key in self._looks.keys() - known - self._objects.keys():
            del self._looks[key]

    async def _work(self, key: ShareKey) -> float | None:
        if not self._publishing.in_charge or not self._reflector.synced.is_set():
            return None  # whoever changes that comes by here
        seen = self._reflector.objects.get(self._objects.get(key, ("", "")))
        try:
            visit = await self._resizing.visit(key, seen)
        except LockTimeoutError:
            return _FIRST_LOOK
        if visit.status is not None and seen is not None and visit.status != seen.status.node:
            await self._say(seen, visit.status)
        self._tell(key, visit)
        if not visit.waiting:
            self._looks[key] = _FIRST_LOOK
            return None
        look = self._looks.get(key, _FIRST_LOOK)
        self._looks[key] = min(_LONGEST_LOOK, look * _SLOWER)
        return look

    async def _say(self, seen: ClaimResize, status: NodeStatus) -> None:
        meta = seen.metadata
        body = {"metadata": {"uid": meta.uid}, "status": {"node": _merged(seen.status.node, status)}}
        try:
            await self._api.patch(CLAIM_RESIZES, body, meta.name, meta.namespace, subresource="status")
        except (errors.NotFoundError, errors.ConflictError):
            return  # it is gone, or another one has its name: the watch says so

    def _tell(self, key: ShareKey, visit: Visit) -> None:
        after, before, status = visit.after, visit.before, visit.status
        if after is None:
            self.reasons.pop(key, None)
            self._asked.pop(key, None)
            return
        ref = ClaimRef(after.namespace, after.name, after.uid)
        if before is not None and before.limit != after.limit:
            note = f"{after.device}: at most {after.limit.text()} (before: {before.limit.text()}) by its ClaimResize"
            self._listeners.event(ref, "Normal", "ClaimResized", note)
        asked = self._asked.get(key)
        if asked is not None and asked[0] == after.limit:
            del self._asked[key]
            self._listeners.took(asyncio.get_running_loop().time() - asked[1])
        reason = "" if status is None else status.reason
        if reason not in ("", _NOT_PREPARED, self.reasons.get(key)):
            assert status is not None
            self._listeners.event(ref, "Warning", "ClaimResizeWaits", f"{reason}: {after.device}: {status.message}")
        self.reasons[key] = reason

    def _on_change(self, change: Change[ClaimResize]) -> None:
        before, after = (None if one is None else self._resizing.key_of(one) for one in (change.before, change.after))
        self._note_wish(change)
        if before is not None:
            self._objects.pop(before, None)
            self._queue.add(before)
        if after is not None and change.after is not None:
            meta = change.after.metadata
            self._objects[after] = (meta.namespace, meta.name)
            self._queue.add(after)

    def _note_wish(self, change: Change[ClaimResize]) -> None:
        """Remember since when something else is wanted of a share."""
        before, after = (None if one is None else self._resizing.wish(one) for one in (change.before, change.after))
        if before is not None and after is not None and before.wanted != after.wanted:
            self._asked[after.key] = after.wanted, asyncio.get_running_loop().time()

    def _on_problem(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            _log.info("ClaimResizes cannot be followed now", reason=text)


def _merged(before: NodeStatus, after: NodeStatus) -> NodeStatus | dict[str, Any]:
    """Return what makes the one the other: of a map, a merge patch takes away only what it names."""
    gone = before.applies_to.keys() - after.applies_to.keys()
    if not gone:
        return after
    found: dict[str, Any] = msgspec.to_builtins(after)
    found["appliesTo"] |= dict.fromkeys(sorted(gone))
    return found
