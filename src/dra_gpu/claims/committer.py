"""One thread that owns the journal's connection and joins waiting writes into one commit.

Every commit waits for the disk; claims prepared at once would wait in line for it. Here all writes that wait when a
commit ends go into the next one, each in a savepoint of its own, so that one that fails takes no other with it. Reads
are served first, outside a transaction. The queue is bounded by a semaphore that makes callers wait.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dra_gpu.claims import journal_file
from dra_gpu.claims.journal_errors import JournalError, translate

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_WAITING = 256  # calls that may wait at once; more wait on the loop, where waiting costs nothing
_JOINED = 64  # writes in one commit


@dataclass(slots=True)
class _Job:
    """A piece of work and where its outcome goes."""

    work: Work[Any]
    writes: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = field(default=None)

    def deliver(self) -> None:
        if self.future.done():
            return  # the caller stopped waiting; the work was done all the same
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Committer:
    """Runs work on the journal's connection in a thread of its own.

    Args:
        path: the journal, already checked. A file that another instance put in its place is followed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_WAITING)
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def read(self, work: Work[T]) -> T:
        """Run work that changes nothing.

        Raises:
            JournalError: the journal could not be read.
        """
        return await self._submit(work, writes=False)

    async def write(self, work: Work[T]) -> T:
        """Run work inside a transaction; on return it is on the disk.

        Raises:
            JournalError: nothing of it was written.
        """
        return await self._submit(work, writes=True)

    async def close(self) -> None:
        """Finish what waits, fold the WAL into the file and end the thread."""
        self._closing = True
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def _submit(self, work: Work[T], *, writes: bool) -> T:
        loop = asyncio.get_running_loop()
        async with self._room:
            if self._closing or not self._thread.is_alive():
                raise JournalError(f"the journal {self._path} is closed: this instance is stopping")
            job = _Job(work, writes, loop, loop.create_future())
            self._jobs.put(job)
            result: T = await job.future
            return result

    def _run(self) -> None:
        ending = False
        while not ending:
            taken = self._take()
            jobs = [job for job in taken if job is not None]
            ending = len(jobs) < len(taken)
            self._serve(jobs)
        if self._connection is not None:
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error:
                pass  # the next start reads the WAL; nothing is lost
            finally:
                self._connection.close()

    def _take(self) -> list[_Job | None]:
        taken = [self._jobs.get()]
        while taken[-1] is not None and len(taken) < _JOINED:
            try:
                taken.append(self._jobs.get_nowait())
            except queue.Empty:
                break
        return taken

    def _serve(self, jobs: list[_Job]) -> None:
        try:
            connection = self._connected()
        except (JournalError, OSError) as error:
            fault = error if isinstance(error, JournalError) else JournalError(f"the journal {self._path}: {error}")
            for job in jobs:
                job.error = fault
            _deliver(jobs)
            return
        reads = [job for job in jobs if not job.writes]
        for job in reads:
            self._attempt(job, connection)
        _deliver(reads)
        writes = [job for job in jobs if job.writes]
        if writes:
            self._commit(writes, connection)
            _deliver(writes)

    def _connected(self) -> sqlite3.Connection:
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            if self._connection is None:
                raise
            journal_file.put_back(self._connection, self._path)
            inode = self._path.stat().st_ino
        if self._connection is None or inode != self._inode:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._connection = journal_file.connect(self._path)
            self._inode = inode
        return self._connection

    def _commit(self, jobs: list[_Job], connection: sqlite3.Connection) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                connection.execute("SAVEPOINT job")
                self._attempt(job, connection)
                if job.error is not None:
                    connection.execute("ROLLBACK TO job")
                connection.execute("RELEASE job")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # A full disk ends the whole transaction, also inside a savepoint: nobody's work was written.
            cause = next((job.error for job in jobs if isinstance(job.error, JournalError)), None)
            for job in jobs:
                job.error = job.error or cause or translate(error, self._path)
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _attempt(self, job: _Job, connection: sqlite3.Connection) -> None:
        try:
            job.result = job.work(connection)
        except sqlite3.Error as error:
            job.error = translate(error, self._path)
        except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it; the thread goes on
            job.error = error


def _deliver(jobs: list[_Job]) -> None:
    """Hand outcomes to the loops of their callers, one wake-up a loop."""
    for loop in {job.loop for job in jobs}:
        mine = [job for job in jobs if job.loop is loop]
        try:
            loop.call_soon_threadsafe(_deliver_on_loop, mine)
        except RuntimeError:
            continue  # the loop is closed: nobody waits any more


def _deliver_on_loop(jobs: list[_Job]) -> None:
    for job in jobs:
        job.deliver()
