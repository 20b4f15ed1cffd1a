"""How a decision is told: to kubectl by field, to everybody else in one line, and never in more than a screen. Pure."""

import unicodedata
from collections.abc import Sequence

from dra_gpu.api.admission_v1 import AdmissionRequest, AdmissionResponse, Status, StatusCause, StatusDetails
from dra_gpu.validation.problem import Problem, Severity

# Beyond these the API server cuts warnings short, or drops them. Source: K8s v1.37, apiserver/pkg/endpoints/filters.
WARNING_CHARACTERS = 256
WARNINGS_CHARACTERS = 4096
MOST_WARNINGS = 12
MOST_ERRORS = 64
ERROR_CHARACTERS = 512
MESSAGE_CHARACTERS = 16 * 1024
_MORE = "see them all with: kubectl gpu validate -f FILE"
_INVALID, _UNCHECKED = 422, 503


def of_problems(request: AdmissionRequest, problems: Sequence[Problem]) -> AdmissionResponse:
    """Return the answer to an object: an error denies it, a warning is passed on."""
    errors = [one for one in problems if one.severity is Severity.ERROR]
    warnings = _warnings([one for one in problems if one.severity is Severity.WARNING])
    if not errors:
        return AdmissionResponse(uid=request.uid, allowed=True, warnings=warnings)
    shown = errors[:MOST_ERRORS]
    lines = [clean(str(one), ERROR_CHARACTERS) for one in shown]
    message = "; ".join(lines)[:MESSAGE_CHARACTERS]
    causes = [
        StatusCause(
            "FieldValueInvalid",
            clean(f"{one.reason}: {one.remedy}", ERROR_CHARACTERS),
            clean(one.field or "object", ERROR_CHARACTERS),
        )
        for one in shown
    ]
    if len(errors) > len(shown):
        message = f"{message}; and {len(errors) - len(shown)} more: {_MORE}"
        causes.append(StatusCause("FieldValueInvalid", f"and {len(errors) - len(shown)} more: {_MORE}", "object"))
    return _denied(request, message, "Invalid", _INVALID, causes, warnings)


def unchecked(request: AdmissionRequest, why: str) -> AdmissionResponse:
    """Return the answer to an object of ours that could not be checked: it is not let in unseen."""
    return _denied(request, f"{why}: try again", "ServiceUnavailable", _UNCHECKED, [], [])


def allowed(request: AdmissionRequest) -> AdmissionResponse:
    """Return the answer to an object that is nothing of ours."""
    return AdmissionResponse(uid=request.uid, allowed=True)


def _denied(
    request: AdmissionRequest, message: str, reason: str, code: int, causes: list[StatusCause], warnings: list[str]
) -> AdmissionResponse:
    details = StatusDetails(clean(request.name, 253), request.kind.group, request.kind.kind, causes)
    return AdmissionResponse(
        uid=request.uid, allowed=False, status=Status(message, reason, code, details), warnings=warnings
    )


def _warnings(found: Sequence[Problem]) -> list[str]:
    lines = [clean(str(one), WARNING_CHARACTERS) for one in found[:MOST_WARNINGS]]
    left = len(found) - len(lines)
    return [*lines, f"and {left} more: {_MORE}"] if left else lines


def clean(text: str, most: int) -> str:
    """Return a text that fits into a header and a terminal: no control characters, at most so many characters."""
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    if short.isprintable():
        return short
    return "".join(
        "�" if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") else one for one in short
    )
