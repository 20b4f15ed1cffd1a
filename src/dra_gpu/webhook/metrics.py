"""What the webhook counts, for whoever exports it."""

import enum
from typing import Protocol


class Outcome(enum.Enum):
    """How a question was answered."""

    ALLOWED = "allowed"
    DENIED = "denied"
    FOREIGN = "foreign"  # nothing of ours, or nothing new: allowed without a check
    UNCHECKED = "unchecked"  # ours, and denied because the check failed or took too long


class WebhookMetrics(Protocol):
    """Counters and gauges. Called on the event loop; must neither block nor raise."""

    def reviewed(self, kind: str, operation: str, outcome: Outcome, seconds: float) -> None:
        """Count an answer. `kind` is one of few; `seconds` is from the whole body to the answer."""
        ...

    def refused(self, status: int) -> None:
        """Count a request that was answered with a status of 400 or more."""
        ...

    def hung_up(self) -> None:
        """Count a connection that was closed since too many were open."""
        ...

    def certificate(self, expires: float) -> None:
        """Note until when the certificate in use is valid, in seconds since 1970."""
        ...


class NoMetrics:
    """Counts nothing."""

    def reviewed(self, kind: str, operation: str, outcome: Outcome, seconds: float) -> None:
        """Count nothing."""

    def refused(self, status: int) -> None:
        """Count nothing."""

    def hung_up(self) -> None:
        """Count nothing."""

    def certificate(self, expires: float) -> None:
        """Note nothing."""
