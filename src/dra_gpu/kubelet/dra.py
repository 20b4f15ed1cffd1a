"""NodePrepareResources and NodeUnprepareResources, in DRA v1 and v1beta1, over one `ClaimService`.

Promises: the answer has an entry for every claim of the request, whatever happens behind; a problem of one claim never
becomes an error of the call, which would fail every claim of the pod (Source: K8s v1.37
pkg/kubelet/cm/dra/manager.go, prepareResources); the answer leaves before the kubelet stops listening; a claim that is
refused is one line of the log, of bounded length.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from dra_gpu.kubelet._proto import dra_v1_pb2, dra_v1beta1_pb2
from dra_gpu.kubelet._proto.dra_v1_grpc import DRAPluginBase as DraV1Base
from dra_gpu.kubelet._proto.dra_v1beta1_grpc import DRAPluginBase as DraV1Beta1Base
from dra_gpu.kubelet.calls import RunningCalls
from dra_gpu.kubelet.service import ClaimError, ClaimRef, ClaimService, PreparedClaim, PreparedDevice

DEFAULT_TIMEOUT = 45.0
"""Seconds for a call that names no deadline: what the kubelet gives.

Source: K8s v1.37 pkg/kubelet/cm/dra/plugin/dra_plugin.go.
"""

MAX_TIMEOUT = 120.0
"""Seconds after which no caller is waited for, whatever deadline it names."""

ANSWER_MARGIN = 1.0
"""Seconds before the caller's deadline at which the service has to be done; half of them remain for the answer."""

MAX_MESSAGE = 1500
"""Characters of an error that are passed on: a pod's event shows 1024 bytes of it, and a claim may quote 10 KiB."""

MAX_NAME = 600
"""Characters of a claim that are logged: a namespace of 63, a name of 253 and a UID, and nobody's novels."""

Outcome = TypeVar("Outcome")
Request = TypeVar("Request")
Response = TypeVar("Response")

_PrepareRequest = dra_v1_pb2.NodePrepareResourcesRequest | dra_v1beta1_pb2.NodePrepareResourcesRequest
_PrepareResponse = dra_v1_pb2.NodePrepareResourcesResponse | dra_v1beta1_pb2.NodePrepareResourcesResponse
_UnprepareRequest = dra_v1_pb2.NodeUnprepareResourcesRequest | dra_v1beta1_pb2.NodeUnprepareResourcesRequest
_UnprepareResponse = dra_v1_pb2.NodeUnprepareResourcesResponse | dra_v1beta1_pb2.NodeUnprepareResourcesResponse

_log = structlog.get_logger(__name__)


class ClaimCalls:
    """The two calls without their wire format."""

    def __init__(self, driver: str, service: ClaimService, running: RunningCalls) -> None:
        self.running = running
        self._driver = driver
        self._service = service

    async def prepare(
        self, claims: Iterable[ClaimRef], seconds_left: float | None
    ) -> dict[str, PreparedClaim | ClaimError]:
        """Prepare `claims`; the caller still waits `seconds_left`."""
        return await self._answer("NodePrepareResources", list(claims), seconds_left, self._service.prepare)

    async def unprepare(self, claims: Iterable[ClaimRef], seconds_left: float | None) -> dict[str, ClaimError | None]:
        """Give `claims` back; the caller still waits `seconds_left`."""
        return await self._answer("NodeUnprepareResources", list(claims), seconds_left, self._service.unprepare)

    async def _answer(
        self,
        method: str,
        claims: Sequence[ClaimRef],
        seconds_left: float | None,
        serve: Callable[[Sequence[ClaimRef], float], Coroutine[object, object, Mapping[str, Outcome | ClaimError]]],
    ) -> dict[str, Outcome | ClaimError]:
        known = {claim.uid: claim for claim in reversed(claims) if claim.uid}
        if self.running.closed:
            answers: Mapping[str, Outcome | ClaimError] = {}
            excuse = (
                f"this instance of {self._driver} is stopping and takes no new calls;"
                " the kubelet asks again once the next instance has registered"
            )
        else:
            answers, excuse = await self._serve(method, list(reversed(known.values())), seconds_left, serve)
        found = {
            claim.uid: answers[claim.uid] if claim.uid in answers else ClaimError(_missing(method, claim, excuse))
            for claim in claims
        }
        for claim in claims:
            if isinstance(answer := found[claim.uid], ClaimError):
                _log.warning(
                    "a claim is refused", method=method, claim=_cut(str(claim), MAX_NAME), reason=_shown(answer)
                )
        return found

    async def _serve(
        self,
        method: str,
        claims: Sequence[ClaimRef],
        seconds_left: float | None,
        serve: Callable[[Sequence[ClaimRef], float], Coroutine[object, object, Mapping[str, Outcome | ClaimError]]],
    ) -> tuple[Mapping[str, Outcome | ClaimError], str]:
        """Run the service; the second value says why a claim may have no answer."""
        if not claims:
            return {}, "it has no UID"
        left = min(DEFAULT_TIMEOUT if seconds_left is None else seconds_left, MAX_TIMEOUT)
        margin = min(ANSWER_MARGIN, left / 10)
        deadline = asyncio.get_running_loop().time() + left - margin
        work = self.running.start(serve(claims, deadline))
        # Not awaited directly: a client that goes away, or its deadline, must not cut a claim's steps in the middle.
        # The kubelet asks again and finds what was done.
        done, _ = await asyncio.wait({work}, timeout=left - margin / 2)
        if not done:
            return (
                {},
                f"it was not done within {left - margin:.1f} s; the work goes on and the kubelet's next call finds it",
            )
        if work.cancelled():
            return (
                {},
                f"this instance of {self._driver} stopped in the middle; the kubelet asks the next instance",
            )
        if (error := work.exception()) is not None:
            _log.error("call failed", method=method, claims=[str(claim) for claim in claims], exc_info=error)
            return {}, f"{type(error).__name__}: {error}; this is a fault of {self._driver}, see its log"
        return work.result(), f"{self._driver} gave no answer for it; this is a fault of the driver, see its log"


class DraV1(DraV1Base):
    """Service `k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin` (kubelet 1.34 and later)."""

    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    async def NodePrepareResources(  # noqa: N802 - the protocol's name
        self, stream: Stream[dra_v1_pb2.NodePrepareResourcesRequest, dra_v1_pb2.NodePrepareResourcesResponse]
    ) -> None:
        """Prepare all claims of a pod that this driver handles."""
        await _prepare(self._calls, stream, dra_v1_pb2.NodePrepareResourcesResponse, _device_v1)

    async def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self, stream: Stream[dra_v1_pb2.NodeUnprepareResourcesRequest, dra_v1_pb2.NodeUnprepareResourcesResponse]
    ) -> None:
        """Give back all claims of a pod that this driver handles."""
        await _unprepare(self._calls, stream, dra_v1_pb2.NodeUnprepareResourcesResponse)


class DraV1Beta1(DraV1Beta1Base):
    """Service `k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin`, for older kubelets: the same without share IDs."""

    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    async def NodePrepareResources(  # noqa: N802 - the protocol's name
        self, stream: Stream[dra_v1beta1_pb2.NodePrepareResourcesRequest, dra_v1beta1_pb2.NodePrepareResourcesResponse]
    ) -> None:
        """Prepare all claims of a pod that this driver handles."""
        await _prepare(self._calls, stream, dra_v1beta1_pb2.NodePrepareResourcesResponse, _device_v1beta1)

    async def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self,
        stream: Stream[dra_v1beta1_pb2.NodeUnprepareResourcesRequest, dra_v1beta1_pb2.NodeUnprepareResourcesResponse],
    ) -> None:
        """Give back all claims of a pod that this driver handles."""
        await _unprepare(self._calls, stream, dra_v1beta1_pb2.NodeUnprepareResourcesResponse)


async def _prepare(
    calls: ClaimCalls,
    stream: Stream[Any, Any],
    make_response: Callable[[], _PrepareResponse],
    make_device: Callable[[PreparedDevice], dra_v1_pb2.Device | dra_v1beta1_pb2.Device],
) -> None:
    """Answer NodePrepareResources in the messages of one version."""

    async def respond(request: _PrepareRequest) -> _PrepareResponse:
        answers = await calls.prepare(_refs(request.claims), _time_left(stream))
        response = make_response()
        for uid, answer in answers.items():
            entry: Any = response.claims[uid]  # makes it; its type is that of the version
            if isinstance(answer, ClaimError):
                entry.error = _shown(answer)
            else:
                entry.devices.extend(make_device(device) for device in answer.devices)
        return response

    await _unary(calls.running, stream, respond)


async def _unprepare(
    calls: ClaimCalls, stream: Stream[Any, Any], make_response: Callable[[], _UnprepareResponse]
) -> None:
    """Answer NodeUnprepareResources in the messages of one version."""

    async def respond(request: _UnprepareRequest) -> _UnprepareResponse:
        answers = await calls.unprepare(_refs(request.claims), _time_left(stream))
        response = make_response()
        for uid, answer in answers.items():
            response.claims[uid].error = "" if answer is None else _shown(answer)
        return response

    await _unary(calls.running, stream, respond)


def _device_v1(device: PreparedDevice) -> dra_v1_pb2.Device:
    return dra_v1_pb2.Device(
        request_names=device.request_names,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,
    )


def _device_v1beta1(device: PreparedDevice) -> dra_v1beta1_pb2.Device:
    return dra_v1beta1_pb2.Device(
        request_names=device.request_names,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
    )


class _WireClaim(Protocol):
    """Message `Claim` of either version."""

    namespace: str
    name: str
    uid: str


def _refs(claims: Iterable[_WireClaim]) -> list[ClaimRef]:
    return [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]


def _time_left(stream: Stream[Request, Response]) -> float | None:
    return None if stream.deadline is None else stream.deadline.time_remaining()


def _missing(method: str, claim: ClaimRef, excuse: str) -> str:
    doing = "prepare" if method == "NodePrepareResources" else "give back"
    return f"could not {doing} claim {claim}: {excuse if claim.uid else 'the request names no UID for it'}"


def _shown(error: ClaimError) -> str:
    """Return the message, without its middle when it is too long: the object is named first, the remedy last."""
    return _cut(error.message, MAX_MESSAGE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]} … {text[-length // 2 :]}"


async def _unary(
    running: RunningCalls, stream: Stream[Request, Response], respond: Callable[[Request], Awaitable[Response]]
) -> None:
    """Receive the one request, send the one response, and count it as running until it is sent."""
    with running.call():
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the call ended without a request: send exactly one")
        await stream.send_message(await respond(request))
