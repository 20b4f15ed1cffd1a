"""NVML's answers as Python values: a fact that a GPU, a driver or an old library does not tell is None."""

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")


def optional(call: Callable[..., T], *arguments: Any) -> T | None:
    """Call NVML for a fact that may be missing.

    `AttributeError` and `ValueError` come from nvidia-ml-py itself, for a symbol that the library lacks or bytes that
    are no text.
    """
    try:
        return call(*arguments)
    except (pynvml.NVMLError, AttributeError, ValueError):
        return None


def text(value: str | bytes | None) -> str | None:
    """Return readable text: NVML's buffers may hold anything when a board's flash is damaged."""
    if value is None:
        return None
    decoded = value.decode(errors="replace") if isinstance(value, bytes) else value
    return "".join(character for character in decoded.strip("\0 ") if character.isprintable()) or None
