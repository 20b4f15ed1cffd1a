"""What can go wrong between us and the API server, sorted by what the caller should do.

Every error names the verb, the resource, the object and the remedy, because its text ends up in logs and in pod
events.
"""

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not the JSON wanted: none, another shape, no UTF-8, or nested too deeply."""


class ApiError(Exception):
    """A request that did not succeed.

    Attributes:
        verb: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
        resource: plural and group, such as `resourceslices.resource.k8s.io`.
        name: `namespace/name`, or the bare name; empty for a collection.
        status: HTTP status code; 0 when no answer came.
        reason: Kubernetes' word for it, such as `AlreadyExists`; may be empty.
        detail: what the server (or the network) said.
        retry_after: seconds that the server asked to wait; None if it did not.
    """

    remedy = "read the server's message"
    retryable = False

    def __init__(
        self,
        verb: str,
        resource: str,
        name: str = "",
        *,
        status: int = 0,
        reason: str = "",
        detail: str = "",
        retry_after: float | None = None,
    ) -> None:
        self.verb = verb
        self.resource = resource
        self.name = name
        self.status = status
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after
        target = f"{resource} {name}" if name else resource
        code = f"{status} {reason}".strip() if status else "no answer"
        super().__init__(f"cannot {verb} {target}: {code}: {detail or 'no message'}; {self.remedy}")


class BadRequestError(ApiError):
    """400: the server does not understand the request; with strict field validation, an unknown field."""

    remedy = "the server and this driver disagree about the format: compare their versions; not retried"


class UnreadableAnswerError(ApiError):
    """Success, but not with the object that was asked for: something answers in the API server's place."""

    remedy = "see what stands between this driver and the API server, and compare their versions; retried by itself"
    retryable = True


class UnauthorizedError(ApiError):
    """401, and a second look at the token file did not help."""

    remedy = "check the token file and that the ServiceAccount exists; the file is read again by itself"
    retryable = True


class ForbiddenError(ApiError):
    """403: RBAC or an admission policy says no. Retried slowly, since rights can be granted while we run."""

    remedy = "grant this verb on this resource to the driver's ServiceAccount (see deploy/rbac); retried by itself"
    retryable = True


class NotFoundError(ApiError):
    """404: the object, or the whole resource, does not exist."""

    remedy = (
        "create it, or check that the API is served "
        "(resource.k8s.io/v1 needs Kubernetes 1.34, ClaimResizes need deploy/crds.yaml)"
    )


class ConflictError(ApiError):
    """409: somebody else changed the object since it was read."""

    remedy = "read it again and repeat; done by itself"
    retryable = True


class AlreadyExistsError(ConflictError):
    """409 with reason AlreadyExists: the name is taken."""

    remedy = "adopt the existing object if it is ours, else remove it"


class GoneError(ApiError):
    """410, as a status or as an ERROR event: the resource version is compacted. The answer is a new list."""

    remedy = "list again; done by itself"
    retryable = True


class InvalidError(ApiError):
    """422: the content breaks a rule. The same content is refused again, so it is not retried."""

    remedy = "the content has to change; not retried"


class TooManyRequestsError(ApiError):
    """429: the server is busy; `retry_after` is honoured."""

    remedy = "wait; retried by itself"
    retryable = True


class UnavailableError(ApiError):
    """5xx, or no answer at all: refused, reset, cut, or over the deadline."""

    remedy = "check that the API server runs and is reachable; retried by itself"
    retryable = True


class DeadlineError(UnavailableError):
    """No answer within the request's deadline."""


class WatchIdleError(UnavailableError):
    """A watch that the server took has said nothing: nothing changes, or the connection is half open."""

    remedy = "opened anew by itself"


class LineTooLongError(ApiError):
    """One event of a watch is longer than any legal object."""

    remedy = "find the object that is larger than etcd allows; listed again by itself"
    retryable = True


class _Status(msgspec.Struct):
    """The fields of Kubernetes' `Status` that we use."""

    message: str = ""
    reason: str = ""
    code: int = 0


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    405: BadRequestError,
    409: ConflictError,
    410: GoneError,
    413: InvalidError,
    415: BadRequestError,
    422: InvalidError,
    429: TooManyRequestsError,
}
_SERVER_ERRORS = 500
_LONGEST_MESSAGE = 1_000  # characters of what the server said; it may quote a whole object


def error_from_status(
    verb: str, resource: str, name: str, status: int, body: bytes, retry_after: float | None = None
) -> ApiError:
    """Make the right error of an answer (or of the object of an ERROR event; `status` 0 takes its code)."""
    try:
        said = msgspec.json.decode(body, type=_Status)
    except UNREADABLE:
        said = _Status(message=body[:200].decode("utf-8", "replace").strip())
    code = status or said.code
    kind = _BY_STATUS.get(code, UnavailableError if code >= _SERVER_ERRORS or code == 0 else ApiError)
    if kind is ConflictError and said.reason == "AlreadyExists":
        kind = AlreadyExistsError
    if kind is UnavailableError and said.reason == "Expired":
        kind = GoneError
    return kind(
        verb,
        resource,
        name,
        status=code,
        reason=said.reason[:80],
        detail=said.message[:_LONGEST_MESSAGE],
        retry_after=retry_after,
    )
