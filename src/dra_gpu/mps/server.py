"""The service's socket: takes requests, a line each, and gives each its own deadline.

One process at a time serves a directory. The socket is open to its owner alone (0600): whoever may write to it ends
clients of any share.
"""

import asyncio
import fcntl
import os
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import structlog

from dra_gpu.mps.service import MpsError, MpsErrorKind, MpsService
from dra_gpu.mps.wire import (
    MAX_REQUEST,
    Answer,
    ClientsRequest,
    EnsureRequest,
    Failure,
    LimitsRequest,
    Request,
    ShareRequest,
    StopRequest,
)

#: A call starts a daemon, asks it a handful of things and perhaps ends it again; each of these is bounded.
CALL_SECONDS = 60.0
_CONNECTIONS = 32
_IN_FLIGHT = 16  # of one connection; further lines are not read meanwhile
_BACKLOG = 32
_LOCK_POLL_S = 0.1
_READ_SECONDS = 5.0  # for an answer to be taken: callers wait for it

_log = structlog.get_logger(__name__)


class DirectoryBusyError(Exception):
    """Another process serves the directory."""


async def hold_lock(directory: Path, seconds: float) -> int:
    """Be the only one that serves a directory, until the descriptor returned is closed; kill -9 closes it too.

    Raises:
        DirectoryBusyError: another one did not go within the time.
        OSError: the directory cannot be made or written.
    """
    descriptor = _lock_file(directory)
    until = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if asyncio.get_running_loop().time() >= until:
                os.close(descriptor)
                raise DirectoryBusyError(
                    f"another MPS service works in {directory}: stop it, or give each a --directory of its own"
                ) from None
            await asyncio.sleep(_LOCK_POLL_S)
        else:
            return descriptor


def _lock_file(directory: Path) -> int:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class Server:
    """Answers requests by a service; the lock of the directory must be held."""

    def __init__(self, service: MpsService, path: Path, *, call_seconds: float = CALL_SECONDS) -> None:
        """Remember what to serve and where.

        Args:
            service: does the work.
            path: of the socket.
            call_seconds: how long one request may take.
        """
        self._service = service
        self._path = path
        self._call_seconds = call_seconds
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; what an earlier process left at the path is replaced.

        Raises:
            OSError: the socket cannot be made.
        """
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            os.fchmod(listening.fileno(), 0o600)  # the file gets this mode: it is never open to others
            listening.bind(str(self._path))
            self._server = await asyncio.start_unix_server(
                self._connected, sock=listening, limit=MAX_REQUEST, backlog=_BACKLOG
            )
        except BaseException:
            listening.close()
            raise

    async def stop(self) -> None:
        """Take no more requests; wait for running ones, which end by their deadlines."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # asyncio runs this in one
        if len(self._connections) >= _CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._read(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the caller has gone, or this process goes: its running requests end all the same
        finally:
            self._connections.discard(task)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        free = asyncio.Semaphore(_IN_FLIGHT)
        mine: set[asyncio.Task[None]] = set()
        while True:
            try:
                line = await reader.readuntil()
            except asyncio.IncompleteReadError:
                break
            except asyncio.LimitOverrunError:
                await _write(writer, _refusal(0, f"a request may have {MAX_REQUEST} bytes"))
                break
            try:
                request = msgspec.json.decode(line, type=Request)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                await _write(writer, _refusal(0, f"the request cannot be read ({error})"))
                break
            await free.acquire()
            call = asyncio.create_task(self._serve(request, writer), name=f"{type(request).__name__} {request.id}")
            self._calls.add(call)
            mine.add(call)
            call.add_done_callback(self._calls.discard)
            call.add_done_callback(mine.discard)
            call.add_done_callback(lambda _: free.release())
        await asyncio.gather(*mine, return_exceptions=True)

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._call_seconds):
                result = await self._call(request)
            answer = Answer(request.id, msgspec.Raw(msgspec.json.encode(result)))
        except MpsError as error:
            answer = Answer(request.id, error=Failure(error.kind, str(error)))
        except TimeoutError:
            message = f"MPS: the call did not end within {self._call_seconds:g} s; it is tried again"
            answer = Answer(request.id, error=Failure(MpsErrorKind.TRANSIENT, message))
        except Exception as error:  # noqa: BLE001 - one call's fault ends neither the connection nor the service
            _log.exception("a call failed in a way nobody thought of", call=type(request).__name__)
            answer = Answer(request.id, error=Failure(MpsErrorKind.TRANSIENT, f"MPS: {error!r}; see the service's log"))
        await _write(writer, answer)

    def _call(self, request: Request) -> Coroutine[Any, Any, object]:
        match request:
            case EnsureRequest():
                return self._service.ensure(request.gpu)
            case ShareRequest():
                return self._service.share(request.gpu, request.name, request.limits)
            case LimitsRequest():
                return self._service.limits(request.gpu, request.name, request.limits)
            case ClientsRequest():
                return self._service.clients(request.gpu)
            case StopRequest():
                return self._service.stop(request.gpu, request.name)


def _refusal(number: int, reason: str) -> Answer:
    return Answer(number, error=Failure(MpsErrorKind.UNSUPPORTED, f"MPS: {reason}"))


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    try:
        writer.write(msgspec.json.encode(answer) + b"\n")
        async with asyncio.timeout(_READ_SECONDS):
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()  # whoever does not read holds up neither the others nor the end of the service
    except ConnectionError:
        pass  # nobody waits any more
