"""Whether a process is well, as a list of named facts."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to be so.

    Attributes:
        name: a word, as it stands in the answer.
        problem: returns what is wrong and what to do; empty when nothing is.
    """

    name: str
    problem: Callable[[], Awaitable[str]]


async def verdict(checks: tuple[Check, ...]) -> tuple[bool, str]:
    """Return whether all is well, and a line for each check. A check that fails is a problem, not an error."""
    lines = []
    good = True
    for check in checks:
        try:
            problem = await check.problem()
        except Exception as error:  # noqa: BLE001 - whoever asks wants an answer
            problem = f"{type(error).__name__}: {error}"
        good = good and not problem
        lines.append(f"[-] {check.name}: {problem}" if problem else f"[+] {check.name}")
    return good, "".join(f"{line}\n" for line in lines)
