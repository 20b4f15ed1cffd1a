"""The log of calls: one line a call, written by the library and by nvidia-smi."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

_FIELDS = 6


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``time``: seconds of the monotonic clock at its end; ``result``: NVML return code."""

    time: float
    pid: int
    name: str
    gpu: int | None
    result: int
    detail: str


def read_calls(path: Path, *, name: str | None = None, gpu: int | None = None, pid: int | None = None) -> list[Call]:
    """The calls of a log in order, those that match. ``name`` may hold the wildcards of a shell."""
    return [
        call
        for call in _parse(path)
        if (name is None or fnmatchcase(call.name, name))
        and (gpu is None or call.gpu == gpu)
        and (pid is None or call.pid == pid)
    ]


def _parse(path: Path) -> Iterator[Call]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            parts = line.rstrip("\n").split("\t", _FIELDS - 1)
            if len(parts) != _FIELDS:
                continue  # the last line of a process that was killed in the middle of it
            time, pid, name, gpu, result, detail = parts
            yield Call(float(time), int(pid), name, None if gpu == "-" else int(gpu), int(result), detail)
