"""Joins the claims engine to its neighbours: the kubelet's border on one side, the API server on the other."""

import asyncio
from collections.abc import Mapping, Sequence

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
    """Reads claims from the API server."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> ResourceClaim | None:
        """See `claims.ports.ClaimReader.get`."""
        try:
            return await self._api.get(RESOURCE_CLAIMS, name, namespace, deadline=READ_SECONDS)
        except errors.NotFoundError:
            return None
        except errors.ApiError as error:
            retryable = isinstance(
                error, (errors.UnavailableError, errors.TooManyRequestsError, errors.UnauthorizedError)
            )
            raise ClaimReadError(str(error), retryable=retryable) from error


class EngineService:
    """The claims engine as the kubelet's calls see it. Calls wait until the node has been looked at once."""

    def __init__(self, engine: Engine, ready: asyncio.Event) -> None:
        """Remember the engine.

        Args:
            engine: prepares and unprepares.
            ready: set when the GPUs have been looked at, with success or without.
        """
        self._engine = engine
        self._ready = ready

    async def prepare(
        self, claims: Sequence[service.ClaimRef], deadline: float
    ) -> Mapping[str, service.PreparedClaim | service.ClaimError]:
        """See `kubelet.service.ClaimService.prepare`."""
        if not await self._is_ready(deadline):
            return {claim.uid: _NOT_READY for claim in claims}
        results = await self._engine.prepare(_refs(claims), deadline)
        return {uid: _answer(result) for uid, result in results.items()}

    async def unprepare(
        self, claims: Sequence[service.ClaimRef], deadline: float
    ) -> Mapping[str, service.ClaimError | None]:
        """See `kubelet.service.ClaimService.unprepare`."""
        if not await self._is_ready(deadline):
            return dict.fromkeys((claim.uid for claim in claims), _NOT_READY)
        results = await self._engine.unprepare(_refs(claims), deadline)
        return {
            uid: None if refusal is None else service.ClaimError(refusal.message) for uid, refusal in results.items()
        }

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
