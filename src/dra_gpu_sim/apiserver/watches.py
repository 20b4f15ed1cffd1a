"""Watches: the history since a version, then every change, as lines of JSON; bookmarks; and faults."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dra_gpu_sim.apiserver.failures import ApiFailureError, status_object
from dra_gpu_sim.apiserver.faults import Faults
from dra_gpu_sim.apiserver.http1 import Exchange
from dra_gpu_sim.apiserver.resources import ServedResource
from dra_gpu_sim.apiserver.store import Change, ObjectStore

_END = object()


class Watch:
    """One open watch."""

    def __init__(
        self,
        store: ObjectStore,
        served: ServedResource,
        namespace: str,
        matches: Callable[[Mapping[str, Any]], bool],
        faults: Faults,
    ) -> None:
        self.served = served
        self._store = store
        self._namespace = namespace
        self._matches = matches
        self._faults = faults
        self._queue: asyncio.Queue[dict[str, Any] | object] = asyncio.Queue()

    def send(self, kind: str, obj: Mapping[str, Any]) -> None:
        """Put an event of any kind on the stream."""
        self._queue.put_nowait({"type": kind, "object": obj})

    def bookmark(self, annotations: Mapping[str, str] | None = None) -> None:
        """Tell the client the present version."""
        meta = {"resourceVersion": str(self._store.version), **({"annotations": annotations} if annotations else {})}
        self.send("BOOKMARK", {"kind": self.served.kind, "apiVersion": self.served.api_version, "metadata": meta})

    def giant(self, size: int) -> None:
        """Send one event whose line is at least ``size`` bytes long: an object with a huge annotation."""
        pad = {"example.com/pad": "x" * size}
        for obj in self._store.list(self.served, self._namespace, self._matches):
            obj["metadata"]["annotations"] = {**(obj["metadata"].get("annotations") or {}), **pad}
            self.send("MODIFIED", obj)
            return
        self.bookmark(pad)

    def fail(self, code: int, message: str) -> None:
        """End with an ERROR event."""
        self.send("ERROR", status_object(code, message))
        self.close()

    def close(self) -> None:
        """End the stream in good order, after what is already on it."""
        self._queue.put_nowait(_END)

    async def run(self, exchange: Exchange, version: str, *, limit: float, bookmark_every: float | None) -> None:
        """Serve until ``limit`` seconds are over, the client leaves, or the watch is closed."""
        unsubscribe = self._store.subscribe(self._on_change)
        try:
            if version in ("", "0"):
                for obj in self._store.list(self.served, self._namespace, self._matches):
                    self.send("ADDED", obj)
            else:
                for change in self._store.since(_as_number(version)):
                    self._on_change(change)
        except ApiFailureError as failure:
            if failure.code != 410 or self._faults.compaction_as_status:  # noqa: PLR2004 - Gone
                unsubscribe()
                raise
            self.fail(failure.code, failure.message)
        try:
            await exchange.start_stream()
            await self._pump(exchange, limit, bookmark_every)
        finally:
            unsubscribe()

    async def _pump(self, exchange: Exchange, limit: float, bookmark_every: float | None) -> None:
        gone = asyncio.create_task(exchange.client_gone())
        sender = asyncio.create_task(self._send_lines(exchange))
        tasks = {gone, sender}
        if bookmark_every is not None:
            tasks.add(asyncio.create_task(self._bookmark_regularly(bookmark_every)))
        try:
            done, _ = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if gone not in done and not sender.done():
                self.close()
                await sender
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task

    async def _send_lines(self, exchange: Exchange) -> None:
        while (event := await self._queue.get()) is not _END:
            await self._faults.watches_flow.wait()
            await exchange.send_chunk(msgspec.json.encode(event) + b"\n")
        await self._faults.watches_flow.wait()
        await exchange.end()

    async def _bookmark_regularly(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            self.bookmark()

    def _on_change(self, change: Change) -> None:
        if change.resource != self.served.key:
            return
        before = change.before is not None and self._selects(change.before)
        after = change.after is not None and self._selects(change.after)
        if after and change.after is not None:
            self.send("MODIFIED" if before else "ADDED", change.after)
        elif before and change.before is not None:
            shown = {**change.before, "metadata": {**change.before["metadata"], "resourceVersion": str(change.version)}}
            self.send("DELETED", shown)

    def _selects(self, obj: Mapping[str, Any]) -> bool:
        return self._namespace in ("", obj["metadata"].get("namespace", "")) and self._matches(obj)


def _as_number(version: str) -> int:
    try:
        return int(version)
    except ValueError:
        raise ApiFailureError(400, f"invalid resource version {version!r}") from None
