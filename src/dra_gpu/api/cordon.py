"""The words by which a GPU is taken out of service: what `kubectl gpu cordon` writes, and what the node reads. Pure.

Each device of the GPU gets a DeviceTaintRule of its own, since a rule names one device by name or all of a pool. A
reset is asked for by a label on one of these rules, whose value is the request's id; the node answers by an Event of
the Node whose note begins with that id. So it needs no right to write rules.
"""

import re
from dataclasses import dataclass

TAINT_KEY = "resource.dra-gpu.dev/cordoned"
"""Key of the taint on every device of a cordoned GPU but its `monitor` view."""

CORDON_LABEL = "resource.dra-gpu.dev/cordon"
"""On each rule that `kubectl gpu` made; its value says nothing."""

RESET_LABEL = "resource.dra-gpu.dev/reset"
"""On one rule of a GPU that is to be reset; its value is the id of the request."""

GPU_ANNOTATION = "resource.dra-gpu.dev/gpu"
"""On each rule: the UUID of the GPU that was meant. A board that has taken its place is not."""

CLEAR_ANNOTATION = "resource.dra-gpu.dev/clear-health"
"""On the Node: UUIDs of GPUs, separated by commas, that a person calls well. Each value acts once; what is no UUID of a
GPU of the node makes it another value."""

RESET_DONE, RESET_FAILED = "GpuReset", "GpuNotReset"
"""Reasons of the Event that answers."""

_ID = re.compile(r"[a-z0-9]{8,40}", re.ASCII)


def is_reset_id(text: str) -> bool:
    """Tell whether a label's value can be the id of a request."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class ResetAnswer:
    """What the node says about a request.

    Attributes:
        request: its id.
        done: the GPU has been reset and answers.
        text: what happened, and what to do, for a person.
    """

    request: str
    done: bool
    text: str

    @property
    def reason(self) -> str:
        """Reason of the Event."""
        return RESET_DONE if self.done else RESET_FAILED

    @property
    def note(self) -> str:
        """Note of the Event."""
        return f"Request {self.request}: {self.text}"

    @classmethod
    def read(cls, reason: str, note: str, request: str) -> "ResetAnswer | None":
        """Return what an Event says about a request; None when it is about something else."""
        start = f"Request {request}: "
        if reason not in (RESET_DONE, RESET_FAILED) or not note.startswith(start):
            return None
        return cls(request, reason == RESET_DONE, note.removeprefix(start))
