"""Answers that are not success, in the shape of Kubernetes' ``Status`` object."""

from typing import Any

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiFailureError(Exception):
    """A request that ends with a status code of 400 or more."""

    def __init__(self, code: int, message: str, *, reason: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or _REASONS.get(code, "Unknown")
        self.headers = headers or {}

    def status(self) -> dict[str, Any]:
        """The body that Kubernetes sends with such an answer."""
        return status_object(self.code, self.message, reason=self.reason)


def status_object(code: int, message: str, *, reason: str = "") -> dict[str, Any]:
    """A ``Status`` of kind Failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason or _REASONS.get(code, "Unknown"),
        "code": code,
    }
