"""What a claim's call answers for each error of this package's making. Pure."""

from dra_gpu.cdi.store import SpecStoreError
from dra_gpu.cdi.validation import InvalidSpecError
from dra_gpu.claims.execution import StepFailedError
from dra_gpu.claims.journal_errors import JournalError
from dra_gpu.claims.locks import LockTimeoutError
from dra_gpu.claims.outcome import Refusal, RefusalKind, RefusedError
from dra_gpu.claims.ports import ClaimReadError
from dra_gpu.mps.service import MpsError, MpsErrorKind
from dra_gpu.vendors.base import FailureKind, VendorError

_OF_VENDOR = {
    FailureKind.LOST: RefusalKind.GPU_LOST,
    FailureKind.UNRESPONSIVE: RefusalKind.GPU_UNRESPONSIVE,
    FailureKind.IN_USE: RefusalKind.HELD,
}


def refusal_of(what: str, error: Exception) -> Refusal | None:
    """Return the refusal for an error of this package's making; None for one that nobody foresaw.

    Args:
        what: `claim ns/name (uid)`, put before messages that do not name the claim.
        error: what was raised.
    """
    match error:
        case RefusedError():
            return error.refusal
        case StepFailedError():
            return refusal_of(what, error.cause)
        case VendorError():
            lasting = (FailureKind.UNSUPPORTED, FailureKind.REFUSED)
            return Refusal(f"{what}: {error}", error.kind not in lasting, _OF_VENDOR.get(error.kind, RefusalKind.GPU))
        case MpsError():
            return Refusal(f"{what}: {error}", error.kind is not MpsErrorKind.UNSUPPORTED, RefusalKind.MPS)
        case ClaimReadError():
            return Refusal(f"{what}: {error}", error.retryable, RefusalKind.API_SERVER)
        case JournalError():
            return Refusal(f"{what}: {error}", retryable=True, kind=RefusalKind.JOURNAL)
        case SpecStoreError() | InvalidSpecError():
            return Refusal(f"{what}: {error}", retryable=True, kind=RefusalKind.CDI)
        case LockTimeoutError():
            return Refusal(f"{what}: {error}", retryable=True, kind=RefusalKind.BUSY)
        case OSError():
            return Refusal(f"{what}: {error}", retryable=True, kind=RefusalKind.INTERNAL)
        case _:
            return None
