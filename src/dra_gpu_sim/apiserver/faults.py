"""Faults that tests ask the server for: what it is to do wrong, to whom, and how often.

Only the plan lives here; the server looks into it at each request. Everything is also reachable through ``POST
/_faults`` with ``{"action": "<method>", ...arguments}``, so that a test can break a server that runs in another
process.
"""

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class FaultRule:
    """Fail or delay the next ``count`` requests that match; an empty field matches everything.

    Attributes:
        verb: ``get``, ``list``, ``watch``, ``create``, ``update``, ``patch``, ``delete`` or ``deletecollection``.
        resource: plural, without the group.
        name: name of the object.
        status: status code to answer with; 0 answers normally (after the delay).
        headers: sent with the failure, for example ``{"Retry-After": "7"}``.
        delay: seconds to wait first.
        apply_first: do what was asked and only then fail: the answer is lost, not the write.
    """

    verb: str = ""
    resource: str = ""
    name: str = ""
    status: int = 0
    message: str = "failed by a fault rule"
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    count: int = 1
    apply_first: bool = False

    def matches(self, verb: str, resource: str, name: str) -> bool:
        """Tell whether the rule has uses left and means this request."""
        return (
            self.count > 0 and self.verb in ("", verb) and self.resource in ("", resource) and self.name in ("", name)
        )


class Faults:
    """The present plan."""

    def __init__(self) -> None:
        self.rules: list[FaultRule] = []
        self.watches_flow = asyncio.Event()
        self.watches_flow.set()
        self.compaction_as_status = False

    def fail(
        self,
        *,
        status: int,
        verb: str = "",
        resource: str = "",
        name: str = "",
        count: int = 1,
        headers: dict[str, str] | None = None,
        message: str = "failed by a fault rule",
        delay: float = 0.0,
        apply_first: bool = False,
    ) -> None:
        """Answer the next ``count`` matching requests with ``status``."""
        self.rules.append(FaultRule(verb, resource, name, status, message, headers or {}, delay, count, apply_first))

    def delay(self, *, seconds: float, verb: str = "", resource: str = "", count: int = 1) -> None:
        """Answer the next ``count`` matching requests ``seconds`` later."""
        self.rules.append(FaultRule(verb, resource, delay=seconds, count=count))

    def stall_watches(self) -> None:
        """Send nothing on any watch, neither events nor an end, as when the other side has vanished."""
        self.watches_flow.clear()

    def resume_watches(self) -> None:
        """Let watches flow again."""
        self.watches_flow.set()

    def clear(self) -> None:
        """Forget everything."""
        self.rules.clear()
        self.compaction_as_status = False
        self.resume_watches()

    def take(self, verb: str, resource: str, name: str) -> FaultRule | None:
        """Use up one count of the first rule that matches this request."""
        for rule in self.rules:
            if rule.matches(verb, resource, name):
                rule.count -= 1
                return rule
        return None
