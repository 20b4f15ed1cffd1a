"""Sets the limits of a share to its goal, and looks whether anything still has more, or could take it.

A limit on memory by cgroup binds at once, and holds when no more is in use. A namespace of MPS changes only while no
client is attached, and holds from then on. What stands in a container's environment is for containers that start
later: it holds when no process of the claim's pods carries more. What nothing enforces, holds by being said.
Source: MPS documentation r615, "MPS v3 Namespaces" and "Environment Variables".
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dra_gpu.api.claim_resize import HeldProcess
from dra_gpu.claims.record import Record
from dra_gpu.claims.resize.decide import Enforced
from dra_gpu.claims.resize.state import Resize
from dra_gpu.claims.shares import MEBI, HeldShare, share_name
from dra_gpu.claims.steps import Machine, ShareOnMps, WriteCdiSpec
from dra_gpu.inventory.amounts import Amounts
from dra_gpu.inventory.sharing import Mechanism, MpsProtocol
from dra_gpu.mps.service import Limits, MpsError, MpsErrorKind
from dra_gpu.vendors.base import CgroupGoneError

WAITING = "WaitingForWorkload"
_MOST_PROCESSES = 10
_PERCENT_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_COMPUTE, _MEMORY = "compute", "memory"
_UNITS = {"G": 2**30, "M": 2**20, "K": 2**10}


@dataclass(slots=True)
class _Found:
    """What is in the way of the parts of a goal."""

    compute: bool = True
    memory: bool = True
    complete: bool = True
    mps: Limits | None = None
    pids: dict[int, None] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


async def enforce(record: Record, resize: Resize, machine: Machine, pods: Collection[str] | None) -> Enforced:
    """Set the limits of a share of a prepared claim to the goal of its resize. The caller holds its locks.

    Args:
        record: the claim, as the journal has it with that goal.
        resize: of one of its shares.
        machine: the node.
        pods: UIDs of the pods that may use the claim; None where nobody can tell.

    Raises:
        VendorError, MpsError, SpecStoreError, JournalError: something could not be set or seen now.
    """
    share = _share(record, resize)
    if share is None:
        return Enforced(resize.limit, complete=False, reason="NotKnown", message="the share is not known here yet")
    found = _Found()
    step = _on_mps(record, share)
    if step is not None:
        await _set_mps(step, share, resize, machine, found)
    if share.memory is Mechanism.CGROUP:
        await _set_memory(record, share, resize, machine, found)
    if step is not None and step.share.protocol is MpsProtocol.CLASSIC:
        await _set_environment(record, share, resize, machine, pods, found)
    return Enforced(
        _held(resize, found),
        found.complete,
        found.mps,
        tuple(HeldProcess(pid, machine.command(pid)) for pid in list(found.pids)[:_MOST_PROCESSES]),
        WAITING if found.messages else "",
        "; ".join(found.messages),
    )


def _share(record: Record, resize: Resize) -> HeldShare | None:
    """Return the share that is resized as it was planned."""
    key = (resize.device, resize.share_id)
    return next((one for one in record.planned if (one.device, one.share_id) == key), None)


def _held(resize: Resize, found: _Found) -> Amounts:
    goal, limit = resize.goal, resize.limit
    return Amounts(
        goal.compute_percent if found.compute else limit.compute_percent,
        goal.memory if found.memory else limit.memory,
        goal.clients,
        goal.nvlink_bandwidth,
    )


def _on_mps(record: Record, share: HeldShare) -> ShareOnMps | None:
    name = share_name(share.share_id)
    steps = (step for step in record.steps if isinstance(step, ShareOnMps) and step.share.name == name)
    return next(steps, None)


async def _set_mps(step: ShareOnMps, share: HeldShare, resize: Resize, machine: Machine, found: _Found) -> None:
    """Give the share on MPS its limits; with classic MPS they are only noted there."""
    try:
        await machine.resize_share(step.gpu, step.share, step.placement)
    except MpsError as error:
        if error.kind is not MpsErrorKind.BUSY:
            raise
        found.complete = False
        found.compute = resize.goal.compute_percent == resize.limit.compute_percent
        found.memory = share.memory is Mechanism.CGROUP or resize.goal.memory == resize.limit.memory
        pids = await machine.share_clients(step.gpu, step.share.name, step.placement)
        found.pids |= dict.fromkeys(pids)
        found.messages.append(str(error))
    else:
        found.mps = step.share.limits


async def _set_memory(record: Record, share: HeldShare, resize: Resize, machine: Machine, found: _Found) -> None:
    """Limit the memory of the claim's pods, and see whether they use no more, each and all of them together.

    Each pod has the whole limit; what others are to have must be free all the same. Of a pod that has shares of other
    claims, too, what these may use is not counted.
    """
    total, wanted, users = 0, 0, dict[int, None]()
    for budget in await machine.memory_budgets(record.ref.uid, share.gpu):
        limit = budget.own + budget.others
        with suppress(CgroupGoneError):
            await machine.set_memory_limit(share.gpu, budget.cgroup, limit)
            if resize.goal.memory >= resize.limit.memory:
                continue
            use = await machine.memory_use(share.gpu, budget.cgroup)
            total, wanted = total + max(0, use.memory_bytes - budget.others), budget.own
            users |= dict.fromkeys(use.processes)
            if use.memory_bytes > limit:
                _more_in_use(share.gpu, use.memory_bytes, use.processes, limit, found)
    if total > wanted and found.memory:
        _more_in_use(share.gpu, total, tuple(users), wanted, found)


def _more_in_use(gpu: str, used: int, pids: Sequence[int], limit: int, found: _Found) -> None:
    found.memory = False
    found.pids |= dict.fromkeys(pids)
    named = ", ".join(map(str, pids[:_MOST_PROCESSES])) or "unknown"
    found.messages.append(
        f"GPU {gpu}: {used // MEBI} MiB of memory are in use (pids {named}), "
        f"{limit // MEBI} MiB are wanted: the rest must be freed"
    )


async def _set_environment(
    record: Record, share: HeldShare, resize: Resize, machine: Machine, pods: Collection[str] | None, found: _Found
) -> None:
    """Write the file from which containers get their limits, and see whether a process has more from before."""
    written = False
    for step in record.steps:
        if isinstance(step, WriteCdiSpec) and not await machine.spec_intact(step):
            await machine.write_spec(step)
            written = True
    if resize.goal == resize.limit:
        return
    by_memory = share.memory is Mechanism.COOPERATIVE
    if pods is None or written:  # a container that is being made by the former file shows its processes in a moment
        found.compute, found.memory = False, not by_memory
        found.messages.append("containers that are being started are waited for")
        return
    environments = await machine.environments(pods)
    for what, carries in _carriers(resize.goal, by_memory=by_memory).items():
        pids = [pid for pid, variables in environments.items() if carries(variables)]
        if pids:
            found.pids |= dict.fromkeys(pids)
            found.messages.append(f"processes were started with more {what}: their containers must end first")
            found.compute &= what != _COMPUTE
            found.memory &= what != _MEMORY


def _carriers(goal: Amounts, *, by_memory: bool) -> Mapping[str, Callable[[Mapping[str, str]], bool]]:
    def more_compute(variables: Mapping[str, str]) -> bool:
        text = variables.get(_PERCENT_VARIABLE, "")
        return text.isdecimal() and int(text) > goal.compute_percent

    def more_memory(variables: Mapping[str, str]) -> bool:
        return any(limit > goal.memory for limit in _memory_limits(variables.get(_MEMORY_VARIABLE, "")))

    return {_COMPUTE: more_compute, _MEMORY: more_memory} if by_memory else {_COMPUTE: more_compute}


def _memory_limits(text: str) -> Iterable[int]:
    """Read `GPU-…=2048M[,…]`; what cannot be read is no limit of ours."""
    for entry in text.split(","):
        amount = entry.partition("=")[2].strip()
        if amount[:-1].isdecimal() and amount[-1:] in _UNITS:
            yield int(amount[:-1]) * _UNITS[amount[-1:]]
