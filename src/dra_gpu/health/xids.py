"""How grave each XID is: by NVIDIA's catalogue, unless the operator decides otherwise. Pure."""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_gpu.health.xid_catalogue import CATALOGUE, Action

MAX_XID = 999
"""The largest number that NVML reports; it stands for an error without one (`nvmlEventData_t.eventData`)."""
_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)


class Severity(enum.IntEnum):
    """What follows for a GPU, least first."""

    NOTICE = 1
    """It is told, nothing more: the error was the workload's."""
    CORDON = 2
    """No new claims; what runs may go on, and is never evicted."""
    FATAL = 3
    """No new claims; what runs has lost its work, or will."""
    LOST = 4
    """The GPU is gone."""


_SEVERITIES: Mapping[Action, Severity | None] = {
    Action.IGNORE: None,
    Action.FOLLOW_OTHER: Severity.NOTICE,
    Action.RESTART_APP: Severity.NOTICE,
    Action.RESET_GPU: Severity.FATAL,
    Action.RESTART_VM: Severity.FATAL,
    Action.RESTART_NODE: Severity.LOST,
    Action.CHECK_NVLINK: Severity.FATAL,
    Action.CHECK_MECHANICALS: Severity.CORDON,
    Action.UPDATE_SOFTWARE: Severity.CORDON,
    Action.INVESTIGATE: Severity.CORDON,
}
_WORDS: Mapping[str, Severity | None] = {
    "ignore": None,
    "notice": Severity.NOTICE,
    "cordon": Severity.CORDON,
    "fatal": Severity.FATAL,
    "lost": Severity.LOST,
}


@dataclass(frozen=True, slots=True)
class XidRules:
    """How XIDs are judged.

    Attributes:
        overrides: by number, what the operator decided; None is to count the error and do nothing else.
    """

    overrides: Mapping[int, Severity | None] = field(default_factory=dict)

    def severity(self, xid: int) -> Severity | None:
        """Return how grave an XID is; None where nothing follows. One that nobody knows keeps new claims away."""
        if xid in self.overrides:
            return self.overrides[xid]
        known = CATALOGUE.get(xid)
        return Severity.CORDON if known is None else _SEVERITIES[known.action]


def describe(xid: int) -> str:
    """Return what an XID is and what NVIDIA says is to be done, for a person."""
    known = CATALOGUE.get(xid)
    if known is None:
        return f"XID {xid}, which NVIDIA's catalogue does not list: {Action.INVESTIGATE.value}"
    return f"XID {xid} ({known.name}): {known.action.value}"


def ignored(text: str) -> tuple[int, ...]:
    """Read a list of XIDs, separated by commas; spaces and empty items do not matter.

    Raises:
        ValueError: an item is no XID; the message names it.
    """
    return tuple(_number(item, text) for item in _items(text))


def rules(text: str) -> dict[int, Severity | None]:
    """Read a list of `NUMBER=WORD`, separated by commas: what follows from each XID.

    Raises:
        ValueError: an item is not so made, or says two things of one XID; the message names it.
    """
    found: dict[int, Severity | None] = {}
    for item in _items(text):
        number, equals, word = (part.strip() for part in item.partition("="))
        if not equals or word.lower() not in _WORDS:
            raise ValueError(f"{item!r} in {text!r} must be NUMBER=WORD, with one of the words {', '.join(_WORDS)}")
        xid = _number(number, text)
        if found.setdefault(xid, _WORDS[word.lower()]) is not _WORDS[word.lower()]:
            raise ValueError(f"{item!r} in {text!r} contradicts what stands there of XID {xid} before")
    return found


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _number(item: str, text: str) -> int:
    if _NUMBER.fullmatch(item) is None or not 0 < int(item) <= MAX_XID:
        raise ValueError(f"{item!r} in {text!r} must be the number of an XID, 1 to {MAX_XID}")
    return int(item)
