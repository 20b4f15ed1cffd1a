"""From a claim's allocation: the devices that are ours, and the config that applies to each. Pure.

Precedence as upstream: configs of the class come first, then those of the claim, and the last that applies wins as a
whole, nothing is merged. A config applies to a result when `requests` is empty, or names its request (`main/sub`) or
that request's parent (`main`).
Source: K8s v1.37 dynamic-resource-allocation/resourceclaim `ConfigForResult`; K8s v1.37 api/resource/v1/types.go.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dra_gpu.api import claim_resize, opaque
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.resource_v1 import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from dra_gpu.claims.outcome import ClaimRef, RefusedError
from dra_gpu.inventory.model import View
from dra_gpu.validation.classes import KIND_OF_VIEW

_FROM_CLASS = "FromClass"


@dataclass(frozen=True, slots=True)
class OpaqueConfig:
    """A decoded config of our driver.

    Attributes:
        source: `FromClass` or `FromClaim`.
        requests: what it applies to; empty means every request.
        config: the decoded parameters.
    """

    source: str
    requests: tuple[str, ...]
    config: opaque.OpaqueConfig


def main_request(request: str) -> str:
    """Return the request that containers can name: `main` of `main/sub`."""
    return request.partition("/")[0]


def own_results(allocation: AllocationResult, driver: str, pool: str) -> tuple[DeviceRequestAllocationResult, ...]:
    """Return the results that are this driver's on this node; driver and pool must both match.

    A foreign driver may name its pool after the node as we do, and our driver serves other nodes under other pools.
    """
    return tuple(result for result in allocation.devices.results if result.driver == driver and result.pool == pool)


def pods_of(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the UIDs of the pods that may use a claim; a group of pods in `reservedFor` tells none."""
    return tuple(one.uid for one in claim.status.reserved_for if one.resource == "pods" and not one.api_group)


def resize_of(claim: ResourceClaim) -> str | None:
    """Return the name of the ClaimResize that keeps a claim allocated; None when none does."""
    kind = (claim_resize.GROUP, claim_resize.PLURAL)
    return next((one.name for one in claim.status.reserved_for if (one.api_group, one.resource) == kind), None)


def own_configs(ref: ClaimRef, allocation: AllocationResult, driver: str) -> tuple[OpaqueConfig, ...]:
    """Decode every config that is addressed to this driver, in the order of precedence (the last one wins).

    Raises:
        RefusedError: one of them is invalid, whether it applies to a result or not; names claim, request and field.
    """
    configs = []
    for entry in allocation.devices.config:
        if entry.opaque is None or entry.opaque.driver != driver:
            continue
        try:
            config = opaque.decode(bytes(entry.opaque.parameters))
        except InvalidConfigError as error:
            raise RefusedError(
                f"claim {ref}: config {_place(entry.source, entry.requests)} is invalid: {error}", retryable=False
            ) from error
        configs.append(OpaqueConfig(entry.source, tuple(entry.requests), config))
    return tuple(sorted(configs, key=lambda config: config.source != _FROM_CLASS))


def config_for(
    ref: ClaimRef, result: DeviceRequestAllocationResult, view: View, configs: Iterable[OpaqueConfig]
) -> opaque.OpaqueConfig | None:
    """Return the config that governs one device; None when nothing was said about it.

    Args:
        ref: the claim, for messages.
        result: the device and the request it serves.
        view: what kind of device it is.
        configs: the claim's configs in the order of `own_configs`.

    Raises:
        RefusedError: a config names this request but is of another kind than the device. With empty `requests` such a
            config is meant for other devices of the claim, and skipped.
    """
    kind = KIND_OF_VIEW[view]
    governing = None
    for candidate in configs:
        if not _applies(candidate, result.request):
            continue
        if isinstance(candidate.config, kind):
            governing = candidate.config
        elif candidate.requests:
            raise RefusedError(
                f"claim {ref}: config {_place(candidate.source, candidate.requests)} is a "
                f"{type(candidate.config).__name__}, but request {result.request!r} got device {result.device}, which "
                f"takes a {kind.__name__}: correct the kind, or let `requests` name only requests it fits (main/sub)",
                retryable=False,
            )
    return governing


def _applies(config: OpaqueConfig, request: str) -> bool:
    return not config.requests or request in config.requests or main_request(request) in config.requests


def _place(source: str, requests: Iterable[str]) -> str:
    names = ", ".join(requests)
    where = "of its DeviceClass" if source == _FROM_CLASS else "of the claim"
    return f"{where} for request {names[:200]}" if names else f"{where} for all requests"
