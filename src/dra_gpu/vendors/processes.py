"""Processes of pods, as a procfs shows them: whose they are, how they were started, and with which environment."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from dra_gpu.vendors.cgroups import pod_of_process

_LONGEST_COMMAND = 80


def environments(processes: Path, pods: Collection[str]) -> Mapping[int, Mapping[str, str]]:
    """Return the environment of every process of some pods by its id; those that end meanwhile are left out.

    It is the environment that a process was started with. What it has changed of it since does not show.

    Args:
        processes: where a procfs is mounted that shows the host's processes.
        pods: UIDs.
    """
    found = {}
    for pid in _pids(processes):
        if pod_of_process(processes, pid) in pods and (variables := _environment(processes / str(pid))) is not None:
            found[pid] = variables
    return found


def command(processes: Path, pid: int) -> str:
    """Return how a process was started, shortened to what a message bears; empty where it has ended."""
    for name in ("cmdline", "comm"):
        try:
            raw = (processes / str(pid) / name).read_bytes()
        except OSError:
            continue
        words = raw.replace(b"\0", b" ").decode(errors="replace").strip()
        readable = "".join(character for character in words if character.isprintable())
        if readable:
            return readable[:_LONGEST_COMMAND]
    return ""


def _pids(processes: Path) -> Iterator[int]:
    try:
        names = os.listdir(processes)  # noqa: PTH208 - names alone, of thousands
    except OSError:
        return
    for name in names:
        if name.isdecimal():
            yield int(name)


def _environment(process: Path) -> Mapping[str, str] | None:
    try:
        raw = (process / "environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {name: value for name, separator, value in pairs if separator}
