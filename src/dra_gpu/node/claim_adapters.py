"""Joins the claims engine to its neighbours: the kubelet's border on one side, the API server on the other."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from dra_gpu.api.resource_v1 import ResourceClaim
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.kubernetes_api import KubernetesApi
from dra_gpu.apiserver.resources import RESOURCE_CLAIMS
from dra_gpu.claims import outcome
from dra_gpu.claims.engine import Engine
from dra_gpu.claims.ports import ClaimReadError
from dra_gpu.kubelet import service

# A healthy API server answers a GET within 1 s (its own objective); the engine asks again while its deadline allows.
READ_SECONDS = 3.0


class ApiClaimReader:
    """Reads claims from the API server.

    Args:
        api: the API server.
        on_read: told of each claim that was read.
    """

    def __init__(self, api: KubernetesApi, on_read: Callable[[ResourceClaim], None] = lambda _claim: None) -> None:
        self._api = api
        self._on_read = on_read

    async def get(self, namespace: str, name: str) -> ResourceClaim | None:
        """See `claims.ports.ClaimReader.get`."""
        try:
            claim = await self._api.get(RESOURCE_CLAIMS, name, namespace, deadline=READ_SECONDS)
        except errors.NotFoundError:
            return None
        except errors.ApiError as error:
            retryable = isinstance(
                error, (errors.UnavailableError, errors.TooManyRequestsError, errors.UnauthorizedError)
            )
            raise ClaimReadError(str(error), retryable=retryable) from error
        self._on_read(claim)
        return claim


class CallObserver(Protocol):
    """Hears of the kubelet's calls and of claims that were refused; `operation` is prepare or unprepare."""

    def call(self, operation: str) -> AbstractContextManager[None]:
        """Return what is entered when a call comes and left when it ends, however it ends."""
        ...

    def failed(self, operation: str, kind: str) -> None:
        """Take note of a claim that was refused."""
        ...


class RefusalListener(Protocol):
    """Hears how each claim of a call fared that may have to wait for others."""

    def refused(self, ref: outcome.ClaimRef, refusal: outcome.Refusal) -> None:
        """Take note of a claim that was not prepared."""
        ...

    def answered(self, ref: outcome.ClaimRef) -> None:
        """Take note of one that was, or that is given back."""
        ...


class _Nobody:
    """Takes note of nothing."""

    def refused(self, ref: outcome.ClaimRef, refusal: outcome.Refusal) -> None:  # noqa: ARG002 - of the Protocol
        return

    def answered(self, ref: outcome.ClaimRef) -> None:  # noqa: ARG002 - of the Protocol
        return

    def call(self, operation: str) -> AbstractContextManager[None]:  # noqa: ARG002 - of the Protocol
        return nullcontext()

    def failed(self, operation: str, kind: str) -> None:  # noqa: ARG002 - of the Protocol
        return


class EngineService:
    """The claims engine as the kubelet's calls see it. Calls wait until the node has been looked at once."""

    def __init__(
        self,
        engine: Engine,
        ready: asyncio.Event,
        waiting: RefusalListener | None = None,
        observer: CallObserver | None = None,
    ) -> None:
        """Remember the engine.

        Args:
            engine: prepares and unprepares.
            ready: set when the GPUs have been looked at, with success or without.
            waiting: hears of claims that were refused, and of those that were not.
            observer: hears of calls.
        """
        self._waiting = waiting or _Nobody()
        self._engine = engine
        self._ready = ready
        self._observer = observer or _Nobody()

    async def prepare(
        self, claims: Sequence[service.ClaimRef], deadline: float
    ) -> Mapping[str, service.PreparedClaim | service.ClaimError]:
        """See `kubelet.service.ClaimService.prepare`."""
        with self._observer.call("prepare"):
            if not await self._is_ready(deadline):
                return self._not_ready("prepare", claims)
            refs = _refs(claims)
            results = await self._engine.prepare(refs, deadline)
            for ref in refs:
                self._note(ref, results[ref.uid])
            return {uid: _answer(result) for uid, result in results.items()}

    async def unprepare(
        self, claims: Sequence[service.ClaimRef], deadline: float
    ) -> Mapping[str, service.ClaimError | None]:
        """See `kubelet.service.ClaimService.unprepare`."""
        with self._observer.call("unprepare"):
            if not await self._is_ready(deadline):
                return self._not_ready("unprepare", claims)
            refs = _refs(claims)
            results = await self._engine.unprepare(refs, deadline)
            for ref in refs:
                self._waiting.answered(ref)
            for refusal in filter(None, results.values()):
                self._observer.failed("unprepare", refusal.kind.value)
            return {
                uid: None if refusal is None else service.ClaimError(refusal.message)
                for uid, refusal in results.items()
            }

    def _note(self, ref: outcome.ClaimRef, result: outcome.Prepared | outcome.Refusal) -> None:
        if isinstance(result, outcome.Refusal):
            self._observer.failed("prepare", result.kind.value)
            self._waiting.refused(ref, result)
        else:
            self._waiting.answered(ref)

    def _not_ready(self, operation: str, claims: Sequence[service.ClaimRef]) -> dict[str, service.ClaimError]:
        for _ in claims:
            self._observer.failed(operation, outcome.RefusalKind.NOT_READY.value)
        return {claim.uid: _NOT_READY for claim in claims}

    async def _is_ready(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True


_NOT_READY = service.ClaimError(
    "the driver is starting and has not seen the node's GPUs yet: the kubelet asks again by itself; "
    "see the log of the driver's pod if it stays so"
)


def _refs(claims: Sequence[service.ClaimRef]) -> list[outcome.ClaimRef]:
    return [outcome.ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]


def _answer(result: outcome.Prepared | outcome.Refusal) -> service.PreparedClaim | service.ClaimError:
    match result:
        case outcome.Refusal():
            return service.ClaimError(result.message)
        case outcome.Prepared():
            return service.PreparedClaim(
                tuple(
                    service.PreparedDevice(
                        device.request_names, device.pool, device.device, device.cdi_ids, device.share_id
                    )
                    for device in result.devices
                )
            )
