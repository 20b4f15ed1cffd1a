"""How much the living processes of each GPU can come to hold, read from the state file alone.

For tests of promises: whatever a driver says that it promised, this is what the hardware would let happen. A GPU is
safe as long as `memory` stays within the GPU and `sm_percent` within 100. GPUs that are not partitioned.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from dra_gpu_sim import checker
from dra_gpu_sim.checker import NO_LIMIT, Client
from dra_gpu_sim.statefile import locked


@dataclass(frozen=True, slots=True)
class Reach:
    """What the living processes of one GPU can come to hold together.

    Attributes:
        gpu: index of the GPU.
        memory: bytes: of each cgroup with a limit the limit, however many processes it has; of any other process its
            MPS limit, or else the whole GPU; and never less than what is held now, since a limit that was lowered
            takes nothing away.
        sm_percent: of each share the largest percentage that one of its processes has; 100 for a process without one.
        held: bytes that are held now.
    """

    gpu: int
    memory: int
    sm_percent: int
    held: int


def reach(root: Path) -> tuple[Reach, ...]:
    """Return it for each GPU of the node at `root`, in order.

    Raises:
        FileNotFoundError: there is no node here.
        dra_gpu_sim.statefile.StateError: it was made by another version.
    """
    with locked(root / "state") as state:
        everyone = checker.clients_in(state, root / "state")
        limits = [(one.gpu, one.cgroup.decode(), one.hard) for one in checker.limits_in(state) if one.hard != NO_LIMIT]
        return tuple(
            _reach_of(
                index,
                state.gpus[index].memory_total,
                [one for one in everyone if one.gpu == index],
                {cgroup: hard for gpu, cgroup, hard in limits if gpu == index},
            )
            for index in range(state.gpu_count)
        )


def _reach_of(gpu: int, whole: int, clients: list[Client], hard: dict[str, int]) -> Reach:
    together: dict[str, list[Client]] = defaultdict(list)
    percent: dict[str, int] = {}
    for client in clients:
        together[_binding(client.cgroup, hard) or f"alone {client.pid}"].append(client)
        share = client.namespace or client.cgroup or str(client.pid)
        percent[share] = max(percent.get(share, 0), client.sm_percent)
    return Reach(
        gpu=gpu,
        memory=sum(_memory(group, whole, hard.get(cgroup)) for cgroup, group in together.items()),
        sm_percent=sum(percent.values()),
        held=sum(client.memory for client in clients),
    )


def _memory(group: list[Client], whole: int, limit: int | None) -> int:
    each = sum(whole if client.pinned_limit is None else client.pinned_limit for client in group)
    return max(each if limit is None else min(each, limit), sum(client.memory for client in group))


def _binding(cgroup: str, hard: dict[str, int]) -> str | None:
    """Return the cgroup at or above this one whose limit is the lowest; None where there is no limit."""
    above = [one for one in hard if cgroup == one or cgroup.startswith(one.rstrip("/") + "/")]
    return min(above, key=lambda one: hard[one], default=None)
