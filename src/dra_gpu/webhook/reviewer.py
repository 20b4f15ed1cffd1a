"""Answers AdmissionReviews: in threads, with a deadline, and with an answer in every case.

The check computes and does no I/O, but an object may be made to be slow: the loop, and with it health and the claims of
other drivers, must not wait for it. An object of ours whose check fails, or does not end in time, is denied.
"""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import structlog

from dra_gpu.api.admission_v1 import AdmissionRequest, AdmissionResponse, AdmissionReview
from dra_gpu.validation.problem import Problem
from dra_gpu.webhook import admission, answers, reading
from dra_gpu.webhook.http_server import Request, Response
from dra_gpu.webhook.metrics import NoMetrics, Outcome, WebhookMetrics
from dra_gpu.webhook.reading import Question

PATH = "/validate"
_DEFAULT_SECONDS = 10.0  # as Kubernetes' own default
_MOST_SECONDS = 30.0  # the API server takes no more
_OF_THE_DEADLINE = 0.8  # the rest is for the way back
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{0,9})?)(h|ms|m|us|µs|ns|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_LOGGED = 200
_AT_ONCE_BYTES = 64 * 1024  # read on the loop, in a millisecond
_KINDS = frozenset({"ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ClaimResize", "ComputeDomain"})

_log = structlog.get_logger(__name__)


class Reviewer:
    """Answers the requests to `PATH`.

    Args:
        metrics: counts the answers.
        check: finds what is wrong with an object of ours.
    """

    def __init__(
        self,
        metrics: WebhookMetrics | None = None,
        check: Callable[[Question], tuple[Problem, ...]] = admission.problems,
    ) -> None:
        self._metrics = metrics or NoMetrics()
        self._check = check
        # What reads is in nobody's way who checks: whatever an object of ours costs, one of others is let through.
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="read")
        self._checkers = ThreadPoolExecutor(2, thread_name_prefix="check")

    async def handle(self, request: Request) -> Response:
        """Answer one request."""
        if request.method != "POST":
            return Response.text(405, "POST an AdmissionReview", allow="POST")
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            return Response.text(415, f"the body is {content_type[:80] or 'of no type'}: send application/json")
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + seconds_of(request.query.get("timeout", "")) * _OF_THE_DEADLINE
        try:
            if len(request.body) <= _AT_ONCE_BYTES:
                question = reading.read(request.body)
                ours = admission.is_ours(question)
            else:
                async with asyncio.timeout_at(deadline):
                    question, ours = await loop.run_in_executor(self._readers, _read, request.body)
        except reading.UnreadableReviewError as error:
            return Response.text(400, answers.clean(str(error), 500))
        except TimeoutError:
            return Response.text(503, "the request could not be read in time: try again")
        asked = question.request
        if ours:
            del question  # who waits for a thread to check it has its text alone in memory
            response, outcome = await self._decide(asked, request.body, deadline)
        else:
            response, outcome = _let_through(question)
        self._tell(asked, response, outcome, loop.time() - started)
        return Response(200, msgspec.json.encode(AdmissionReview(response)))

    def close(self) -> None:
        """Let the threads go; one that still computes ends with its object."""
        for threads in (self._readers, self._checkers):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _decide(
        self, request: AdmissionRequest, body: bytes, deadline: float
    ) -> tuple[AdmissionResponse, Outcome]:
        """Check an object of ours."""
        try:
            async with asyncio.timeout_at(deadline):
                problems = await asyncio.get_running_loop().run_in_executor(self._checkers, self._checked, body)
        except TimeoutError:
            return answers.unchecked(request, "this object could not be checked in time"), Outcome.UNCHECKED
        except Exception as error:  # noqa: BLE001 - told and denied: nothing of ours is let in unseen
            _log.error("an object could not be checked", uid=request.uid[:80], exc_info=error)
            why = "this object could not be checked, which is a fault of the webhook"
            return answers.unchecked(request, why), Outcome.UNCHECKED
        response = answers.of_problems(request, problems)
        return response, Outcome.ALLOWED if response.allowed else Outcome.DENIED

    def _checked(self, body: bytes) -> tuple[Problem, ...]:
        return self._check(reading.read(body))

    def _tell(self, request: AdmissionRequest, response: AdmissionResponse, outcome: Outcome, seconds: float) -> None:
        kind = request.kind.kind if request.kind.kind in _KINDS else "other"
        self._metrics.reviewed(kind, request.operation.value, outcome, seconds)
        if response.allowed:
            return
        assert not isinstance(response.status, msgspec.UnsetType)
        _log.info(
            "denied",
            uid=request.uid[:80],
            kind=request.kind.kind[:80],
            object=f"{request.namespace}/{request.name}"[:_LOGGED],
            operation=request.operation.value,
            outcome=outcome.value,
            why=response.status.message[:_LOGGED],
        )


def _read(body: bytes) -> tuple[Question, bool]:
    question = reading.read(body)
    return question, admission.is_ours(question)


def _let_through(question: Question) -> tuple[AdmissionResponse, Outcome]:
    """Allow what is nothing of ours, or nothing new."""
    try:
        response = answers.of_problems(question.request, admission.hints(question))
    except Exception as error:  # noqa: BLE001 - a hint is worth no refusal
        _log.error("an object of others could not be looked at", uid=question.request.uid[:80], exc_info=error)
        response = answers.allowed(question.request)
    return response, Outcome.FOREIGN


def seconds_of(text: str) -> float:
    """Return the seconds of a Go duration (`10s`, `1m30s`, `500ms`); of what is none, Kubernetes' default."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return _DEFAULT_SECONDS
    return min(sum(float(number) * _SECONDS[unit] for number, unit in parts), _MOST_SECONDS)
