"""kube-scheduler's own allocator as a process: claims are decided one after the other on one node."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.bench.published import NODE
from tests.component.go_programs import go_program

_CLASSES = Path(__file__).parents[2] / "deploy" / "deviceclasses.yaml"


class RealAllocator:
    """Use it as a context manager."""

    def __init__(self) -> None:
        """Build the program if need be, and start it."""
        program = go_program("go-allocator")
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._held: set[str] = set()
        self._gone: list[str] = []

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def load(self, slices: Sequence[dict[str, Any]]) -> None:
        """Publish slices on a node on which no claim holds anything."""
        self._gone += self._held
        self._held = set()
        classes = list(yaml.safe_load_all(_CLASSES.read_text()))
        self._ask({"node": {"metadata": {"name": NODE}}, "classes": classes, "slices": slices, "claims": []})

    def place(self, claim: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return the devices of a claim, which keeps them, or None if it gets none."""
        answer = self._ask({"claims": [claim], "keep": True})
        if answer["allocations"] is None:
            return None
        self._held.add(claim["metadata"]["name"])
        results: list[dict[str, Any]] = answer["allocations"][0]["devices"]["results"]
        return results

    def release(self, name: str) -> None:
        """Let a claim give back what it has."""
        self._held.discard(name)
        self._gone.append(name)

    def nanoseconds(self, claim: dict[str, Any], times: int) -> list[int]:
        """Return how long each of so many decisions about a claim took; it keeps nothing."""
        answer = self._ask({"claims": [claim], "repeat": times})
        measured: list[int] = answer["nanoseconds"]
        return measured

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        gone, self._gone = self._gone, []
        self._process.stdin.write(json.dumps(question | {"release": gone}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if answer.get("error"):
            raise RuntimeError(f"the allocator refuses the question: {answer['error']}")
        return answer
