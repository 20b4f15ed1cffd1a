"""The MPS service as the node plugin sees it: `MpsService` over the socket.

A connection of its own for each call: calls are as rare as claims, and nothing has to be put together again when the
service restarts. A service that is being restarted is waited for; every call can be repeated, so one that was cut off
is. Nothing of this reaches a GPU's library.
"""

import asyncio
import itertools
from pathlib import Path
from typing import TypeVar

import msgspec

from dra_gpu.mps.service import Daemon, GpuClients, Limits, MpsError, MpsErrorKind, Share
from dra_gpu.mps.wire import (
    MAX_ANSWER,
    Answer,
    ClientsRequest,
    EnsureRequest,
    LimitsRequest,
    Request,
    ShareRequest,
    StopRequest,
)

T = TypeVar("T")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class MpsClient:
    """Calls the service at a socket.

    Args:
        path: of the socket.
        call_seconds: how long a call may take in all.
        absent_seconds: how long a service that cannot be reached is waited for.
    """

    def __init__(self, path: Path, *, call_seconds: float = 30.0, absent_seconds: float = 5.0) -> None:
        self._path = path
        self._call_seconds = call_seconds
        self._absent_seconds = absent_seconds
        self._numbers = itertools.count(1)

    async def ensure(self, gpu: str) -> Daemon:
        """See `MpsService.ensure`."""
        return await self._call(EnsureRequest(next(self._numbers), gpu), Daemon)

    async def share(self, gpu: str, name: str, limits: Limits) -> Share:
        """See `MpsService.share`."""
        return await self._call(ShareRequest(next(self._numbers), gpu, name, limits), Share)

    async def limits(self, gpu: str, name: str, limits: Limits) -> Share:
        """See `MpsService.limits`."""
        return await self._call(LimitsRequest(next(self._numbers), gpu, name, limits), Share)

    async def clients(self, gpu: str = "") -> tuple[GpuClients, ...]:
        """See `MpsService.clients`."""
        return await self._call(ClientsRequest(next(self._numbers), gpu), tuple[GpuClients, ...])

    async def stop(self, gpu: str, name: str = "") -> None:
        """See `MpsService.stop`."""
        await self._call(StopRequest(next(self._numbers), gpu, name), type(None))

    async def _call(self, request: Request, result: type[T]) -> T:
        try:
            async with asyncio.timeout(self._call_seconds):
                answer = await self._answered(request)
        except TimeoutError:
            raise MpsError(
                MpsErrorKind.UNAVAILABLE,
                f"the MPS service at {self._path} did not answer within {self._call_seconds:g} s: see its log",
            ) from None
        if answer.error is not None:
            raise MpsError(answer.error.kind, answer.error.message)
        try:
            return msgspec.json.decode(answer.result, type=result)
        except msgspec.DecodeError as error:
            raise self._strange(error) from error

    async def _answered(self, request: Request) -> Answer:
        until = asyncio.get_running_loop().time() + self._absent_seconds
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await self._ask(request)
            except (OSError, EOFError) as error:
                if asyncio.get_running_loop().time() + pause > until:
                    raise MpsError(
                        MpsErrorKind.UNAVAILABLE,
                        f"the MPS service does not answer at {self._path} ({error}): is sharing turned on for this "
                        "node, and does the pod of `dra-gpu mps` run there?",
                    ) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _ask(self, request: Request) -> Answer:
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=MAX_ANSWER)
        try:
            writer.write(msgspec.json.encode(request) + b"\n")
            await writer.drain()
            answer = msgspec.json.decode(await reader.readuntil(), type=Answer)
        except (asyncio.LimitOverrunError, msgspec.DecodeError) as error:
            raise self._strange(error) from error
        finally:
            writer.close()
        return answer

    def _strange(self, error: Exception) -> MpsError:
        return MpsError(
            MpsErrorKind.UNAVAILABLE,
            f"the MPS service at {self._path} answers in another language ({error}): are both of one release?",
        )
