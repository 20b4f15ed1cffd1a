"""What was asked of the server, in order: the ground truth for "no write happened"."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One answered request (for a watch: one opened watch).

    Attributes:
        sequence: counts from 1.
        at: monotonic seconds.
        status: status code of the answer.
        query: the query string, undecoded.
    """

    sequence: int
    at: float
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    status: int
    query: str
    body_bytes: int

    @property
    def is_write(self) -> bool:
        """The request asked for a change."""
        return self.verb in WRITE_VERBS


class RequestLog:
    """The last ``limit`` requests."""

    def __init__(self, limit: int = 100_000) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=limit)
        self._changed = asyncio.Condition()
        self._count = 0
        self._wakers: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many requests there were; a mark for :meth:`since`."""
        return self._count

    def add(self, **fields: Any) -> None:
        """Note an answered request."""
        self._count += 1
        self._records.append(RequestRecord(sequence=self._count, at=time.monotonic(), **fields))
        task = asyncio.get_running_loop().create_task(self._notify())
        self._wakers.add(task)
        task.add_done_callback(self._wakers.discard)

    def since(self, mark: int = 0, *, verb: str = "", resource: str = "") -> list[RequestRecord]:
        """The requests after a mark, narrowed by verb and plural if given."""
        return [
            record
            for record in self._records
            if record.sequence > mark and verb in ("", record.verb) and resource in ("", record.resource)
        ]

    def writes_since(self, mark: int = 0, *, resource: str = "") -> list[RequestRecord]:
        """The requests for a change after a mark."""
        return [record for record in self.since(mark, resource=resource) if record.is_write]

    async def wait_for(self, condition: Callable[["RequestLog"], object], within: float = 30.0) -> None:
        """Return as soon as the log satisfies a condition; ``TimeoutError`` after ``within`` seconds."""
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(lambda: bool(condition(self)))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def as_json(record: RequestRecord) -> dict[str, Any]:
    """A record as the admin endpoint shows it."""
    return asdict(record)
