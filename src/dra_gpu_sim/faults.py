"""Breaking a simulated node: faults of single calls, and what happens to whole GPUs."""

from dataclasses import dataclass

from dra_gpu_sim.fill import free_fault
from dra_gpu_sim.state import NO_INSTANCE, SimFault, SimState
from dra_gpu_sim.statefile import add_event, wake

EVENT_XID, EVENT_RECOVERY_ACTION = 0x8, 0x8000
"""NVML event types."""

RECOVERY_BY_XID = {48: 1, 62: 1, 64: 1, 74: 1, 79: 2, 95: 1, 109: 1, 119: 1, 120: 1, 140: 1, 143: 1, 155: 1}
"""What a GPU recommends after an Xid (field 230): 1 reset, 2 reboot of the node; Xids not listed ask for nothing.

Source: NVIDIA's "GPU Debug Guidelines", recommended actions of each Xid.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault, as it stands.

    Attributes:
        call: name of the call, or a beginning followed by ``*``.
        gpu: index of the GPU, None for all.
        code: NVML return code; 0 lets the call go on after delay and block.
        delay_ms: milliseconds before the call goes on.
        block: whether calls hang until the fault is cleared.
        remaining: calls still to come, None for every call.
        hits: calls it has met.
    """

    serial: int
    call: str
    gpu: int | None
    code: int
    delay_ms: int
    block: bool
    remaining: int | None
    hits: int


def inject(
    state: SimState,
    call: str,
    *,
    gpu: int | None = None,
    code: int = 0,
    delay_ms: int = 0,
    block: bool = False,
    count: int | None = None,
) -> int:
    """Add a fault and give its serial number.

    Raises:
        ValueError: it would do nothing, or names a GPU that does not exist.
        RuntimeError: the table of faults is full.
    """
    if not (code or delay_ms or block):
        raise ValueError(f"a fault of {call!r} needs a code, a delay or block")
    if count is not None and count < 1:
        raise ValueError(f"a fault of {call!r} cannot happen {count} times")
    if gpu is not None and not 0 <= gpu < state.gpu_count:
        raise ValueError(f"there is no GPU {gpu}: the node has {state.gpu_count}")
    slot = free_fault(state)
    slot.call, slot.gpu, slot.code = call.encode(), -1 if gpu is None else gpu, code
    slot.delay_ms, slot.block, slot.remaining = delay_ms, int(block), -1 if count is None else count
    slot.used = 1
    state.fault_count += 1
    return int(slot.serial)


def clear(state: SimState, *, serial: int | None = None, call: str | None = None, gpu: int | None = None) -> int:
    """Remove the faults that match and wake the calls they hold; gives how many. Properties of boards stay."""
    removed = 0
    for slot in state.faults:
        if not slot.used or slot.builtin:
            continue
        if serial is not None and slot.serial != serial:
            continue
        if (call is not None and slot.call != call.encode()) or (gpu is not None and slot.gpu != gpu):
            continue
        slot.used = 0
        state.fault_count -= 1
        removed += 1
    wake(state, "fault_futex")
    return removed


def faults(state: SimState) -> list[Fault]:
    """The injected faults, without those that are properties of boards."""
    return [_fault(slot) for slot in state.faults if slot.used and not slot.builtin]


def _fault(slot: SimFault) -> Fault:
    return Fault(
        serial=slot.serial,
        call=slot.call.decode(),
        gpu=None if slot.gpu < 0 else slot.gpu,
        code=slot.code,
        delay_ms=slot.delay_ms,
        block=bool(slot.block),
        remaining=None if slot.remaining < 0 else slot.remaining,
        hits=slot.hits,
    )


def lose(state: SimState, gpu: int, number: int | None = None) -> None:
    """Let a GPU fall off the bus, with an Xid as its last word. Waits on events notice at once."""
    if number is not None:
        xid(state, gpu, number)
    state.gpus[gpu].lost = 1
    wake(state, "event_futex")


def set_recovery_action(state: SimState, gpu: int, action: int) -> None:
    """Set what field 230 recommends, and report the change as the driver does."""
    if state.gpus[gpu].recovery_action == action:
        return
    state.gpus[gpu].recovery_action = action
    add_event(state, gpu, EVENT_RECOVERY_ACTION, action)


def xid(
    state: SimState,
    gpu: int,
    number: int,
    *,
    gi: int = NO_INSTANCE,
    ci: int = NO_INSTANCE,
    recovery_action: int | None = None,
) -> None:
    """Report an Xid, on a whole GPU or on a MIG instance; the recovery action follows :data:`RECOVERY_BY_XID`."""
    action = RECOVERY_BY_XID.get(number) if recovery_action is None else recovery_action
    if action is not None:
        set_recovery_action(state, gpu, action)
    add_event(state, gpu, EVENT_XID, number, gi=gi, ci=ci)
