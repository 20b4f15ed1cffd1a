"""Why a claim is not served although nothing failed: it is held, set aside, or its GPU is gone. Pure."""

from collections.abc import Sequence

from dra_gpu.api.claim_resize import GROUP, GROWTH_LABEL, PLURAL
from dra_gpu.api.resource_v1 import ResourceClaim, ResourceClaimConsumerReference
from dra_gpu.claims.outcome import ClaimRef, RefusalKind, RefusedError
from dra_gpu.claims.record import Blocker, Record

_NAMED = 5  # holders in a message


def refuse_growth(ref: ClaimRef, claim: ResourceClaim) -> None:
    """Refuse a claim that stands in for the growth of another one: what it was allocated, that one has.

    Who may change a claim may take its label off, but not its users out of its status: it is known by either.

    Raises:
        RefusedError: it does.
    """
    grows = next((one.name for one in claim.status.reserved_for if _is_resize(one) and one.name != ref.name), None)
    if grows is not None:
        whose = f"claim {ref.namespace}/{grows[:80]}"
    elif GROWTH_LABEL in claim.metadata.labels:
        whose = f"the claim with UID {claim.metadata.labels[GROWTH_LABEL][:80]}"
    else:
        return
    raise RefusedError(
        f"claim {ref} holds what {whose} is to grow by, and is never prepared: its pod is deleted by the driver's "
        "controller; give pods a claim of their own",
        retryable=False,
    )


def refuse_unknown_steps(record: Record) -> None:
    """Refuse to take back what only another release could.

    Raises:
        RefusedError: the record has steps that this release does not know.
    """
    if not record.undoable:
        raise RefusedError(
            f"claim {record.ref}: {record.fault}, so that it cannot be taken back here: run that release again (or a "
            "newer one) on this node",
            retryable=True,
        )


def quarantined(record: Record) -> RefusedError:
    """Return why a record that was set aside is not served."""
    reason = record.note or record.fault or "its record cannot be used"
    return RefusedError(
        f"claim {record.ref}: {reason}: recreate the pod to get another device",
        retryable=False,
        kind=RefusalKind.QUARANTINED,
    )


def gpu_gone(ref: ClaimRef, gpu: str) -> RefusedError:
    """Return that the GPU of a prepared claim is not there."""
    return RefusedError(
        f"claim {ref}: {gpu}, on which it was prepared, is not among the working GPUs of this node any more: recreate "
        "the pod to get another device",
        retryable=False,
        kind=RefusalKind.GPU_LOST,
    )


def held(ref: ClaimRef, blockers: Sequence[Blocker]) -> RefusedError:
    """Return who holds what a claim wants; there is at least one."""
    first = blockers[0]
    holders = frozenset(blocker.ref.uid for blocker in blockers)
    note = f" ({first.note[:200]})" if first.note else ""
    free = "it comes free when the kubelet has stopped that claim's pod; the kubelet tries again by itself"
    if not first.shortage:
        return RefusedError(
            f"claim {ref}: device {first.device} still held by claim {first.ref}{note}: {free}",
            retryable=True,
            kind=RefusalKind.HELD,
            holders=holders,
        )
    return RefusedError(
        f"{no_room(ref, blockers)}: {free}",
        retryable=True,
        kind=RefusalKind.HELD,
        holders=holders,
    )


def no_room(ref: ClaimRef, blockers: Sequence[Blocker]) -> str:
    """Return who has what a share is short of; there is at least one."""
    first = blockers[0]
    named = ", ".join(f"claim {blocker.ref}" for blocker in blockers[:_NAMED])
    more = f" and {len(blockers) - _NAMED} more" if len(blockers) > _NAMED else ""
    return f"claim {ref}: ShareNotFree: device {first.device}: {first.shortage}; the rest has {named}{more}"


def _is_resize(one: ResourceClaimConsumerReference) -> bool:
    return (one.api_group, one.resource) == (GROUP, PLURAL)
