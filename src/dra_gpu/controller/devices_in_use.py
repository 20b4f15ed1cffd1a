"""Which claims have devices of ours, and what somebody who wants to uninstall the driver has to know about it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from dra_gpu.api.resource_v1 import ResourceClaim

_NAMED = 20
_NAMED_EACH = 3


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """A claim that has devices of ours.

    Attributes:
        claim: `namespace/name`.
        devices: `pool/device`, where a pool is a node, as a rule.
        users: who may use it: names of pods; others with their resource, as `claimresizes/NAME`. May be empty.
    """

    claim: str
    devices: tuple[str, ...]
    users: tuple[str, ...]

    def __str__(self) -> str:
        users = _some(self.users) if self.users else "nobody any more"
        return f"{self.claim}: {_some(self.devices)}, used by {users}"


@dataclass(frozen=True, slots=True)
class Release:
    """The release of Helm that is to be uninstalled; commands that name it are left out without one.

    Attributes:
        name: of the release; empty where the driver was installed otherwise.
        namespace: of it.
        revision: its newest.
    """

    name: str = ""
    namespace: str = ""
    revision: str = ""


def uses(claims: Iterable[ResourceClaim], drivers: frozenset[str]) -> list[Use]:
    """Return the claims to which devices of these drivers are allocated, in order of their names."""
    return sorted(use for claim in claims if (use := _use(claim, drivers)) is not None)


def refusal(found: list[Use], release: Release) -> str:
    """Return why the driver must stay, who holds it, and every way out; ends with a line break.

    It is to be understood without line breaks, too: Helm 4 prints what a hook says as one line.
    """
    lines = [
        "The driver is not uninstalled: claims have its devices. Without it nobody would give them back:",
        *(f"  {use};" for use in found[:_NAMED]),
        *([f"  and {len(found) - _NAMED} more claims."] if len(found) > _NAMED else []),
        "Delete these pods and ClaimResizes, and what makes them, or wait until they end; then uninstall again.",
    ]
    if release.name:
        placed = f"{release.name} --namespace {release.namespace}"
        lines += [
            f"In spite of them: helm uninstall {placed} --no-hooks",
            "The driver goes on working. But Helm has noted that an uninstall began: to upgrade, first call it off by",
            f"helm rollback {release.name} {release.revision} --namespace {release.namespace}",
            "More is in docs/operations.md, Uninstall.",
        ]
    return "".join(f"{line}\n" for line in lines)


def _use(claim: ResourceClaim, drivers: frozenset[str]) -> Use | None:
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else []
    devices = dict.fromkeys(f"{one.pool}/{one.device}" for one in results if one.driver in drivers)
    if not devices:
        return None
    users = (
        one.name if one.resource == "pods" and not one.api_group else f"{one.resource}/{one.name}"
        for one in claim.status.reserved_for
    )
    return Use(f"{claim.metadata.namespace}/{claim.metadata.name}", tuple(devices), tuple(users))


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED_EACH} more" if len(names) > _NAMED_EACH else ""
    return f"{', '.join(names[:_NAMED_EACH])}{more}"
