"""Carrying out steps: all or nothing, and back.

The caller holds the locks of the GPUs concerned and has written the steps to the journal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dra_gpu.cdi.store import SpecStoreError
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.retry import retrying
from dra_gpu.claims.steps import CreateMigInstance, Machine, Step
from dra_gpu.mps.service import MpsError, MpsErrorKind
from dra_gpu.vendors.base import FailureKind, VendorError

# Undoing a setting of a GPU that is gone, silent or unable: nothing is left of it, or a reset takes it away. Insisting
# would keep the pod Terminating for ever.
_PAST_UNDOING = (FailureKind.LOST, FailureKind.UNRESPONSIVE, FailureKind.UNSUPPORTED, MpsErrorKind.UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A step that could not be undone.

    Attributes:
        step: the step.
        reason: what stands against it.
        in_use: somebody uses what it made, and may let it go in a moment.
        silent: its GPU does not answer; what the step made is there again should the GPU recover without a reset.
    """

    step: Step
    reason: str
    in_use: bool = False
    silent: bool = False


class StepFailedError(Exception):
    """A step failed and those before it were undone, except for `leftovers`.

    Attributes:
        cause: what the step raised.
        leftovers: steps whose undoing failed, too.
    """

    def __init__(self, cause: Exception, leftovers: tuple[Leftover, ...]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.leftovers = leftovers


async def apply(steps: Sequence[Step], machine: Machine, until: float) -> None:
    """Apply steps in order; what may pass by itself is tried again until `until`, also what somebody still uses.

    Raises:
        StepFailedError: one failed; it and those before it were undone.
    """
    for number, step in enumerate(steps):
        try:
            await retrying(partial(step.apply, machine), _passing, until)
        except Exception as error:
            leftovers = await undo(steps[: number + 1], machine, until)
            raise StepFailedError(error, leftovers) from error


async def undo(steps: Sequence[Step], machine: Machine, until: float) -> tuple[Leftover, ...]:
    """Undo steps in reverse order, each on its own; returns those that could not be undone.

    What a GPU had that is gone or does not answer counts as undone, but for a partition of a silent one: it would be
    taken for an administrator's later. Steps that were never applied may be undone.
    """
    leftovers = []
    for step in reversed(steps):
        try:
            await retrying(partial(step.undo, machine), _transient, until)
        except (VendorError, MpsError) as error:
            silent = error.kind is FailureKind.UNRESPONSIVE and isinstance(step, CreateMigInstance)
            if silent or error.kind not in _PAST_UNDOING:
                leftovers.append(Leftover(step, str(error), error.kind is FailureKind.IN_USE, silent))
        except (SpecStoreError, JournalError, OSError) as error:
            leftovers.append(Leftover(step, str(error)))
    return tuple(leftovers)


async def repair(steps: Sequence[Step], machine: Machine, until: float) -> None:
    """Apply steps that are no longer in force. One that fails leaves the others as they are: a workload uses them.

    Raises:
        VendorError, MpsError, SpecStoreError, InvalidSpecError: one could not be applied.
    """
    for step in steps:
        await retrying(partial(step.apply, machine), _transient, until)


async def broken(steps: Sequence[Step], machine: Machine, until: float) -> tuple[Step, ...]:
    """Return the steps that are not, or not certainly, in force.

    Raises:
        VendorError, MpsError: a GPU, or the MPS service, cannot be asked.
    """
    return tuple([step for step in steps if not await retrying(partial(step.verify, machine), _transient, until)])


async def observed(steps: Sequence[Step], machine: Machine, until: float) -> tuple[Step, ...]:
    """Return the steps with what they are going to replace.

    Raises:
        VendorError: a GPU cannot be asked.
    """
    return tuple([await retrying(partial(step.observed, machine), _transient, until) for step in steps])


def _transient(error: Exception) -> bool:
    """Tell whether a repetition may help; the MPS service is back within seconds when its process ends."""
    match error:
        case VendorError():
            return error.kind is FailureKind.TRANSIENT
        case MpsError():
            return error.kind in (MpsErrorKind.TRANSIENT, MpsErrorKind.UNAVAILABLE)
        case _:
            return False


def _passing(error: Exception) -> bool:
    """Tell whether a repetition of what is wanted may help: who has a GPU or partition open may let it go."""
    return _transient(error) or (isinstance(error, VendorError) and error.kind is FailureKind.IN_USE)
