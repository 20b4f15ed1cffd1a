"""Shares of GPUs: what one costs, and whether that grows with the shares that the GPU has already."""

import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dra_gpu_sim.local.kubelet import Claim
from tests.bench.cluster import Claims
from tests.bench.figures import Figure, percentile
from tests.bench.plugin import Plugin

SHARES = 48  # as many as one GPU serves clients under MPS before CUDA 13.1
ROUNDS = 10
PROGRAMS = (
    2  # that MPS protocol 3 needs for a share: one makes it, one limits it; one lists its clients, one removes it
)
EDGE = 4  # shares at either end whose cost is compared
ONE_SHARE = {"computePercent": "2", "memory": "1Gi"}


@dataclass(slots=True)
class Bench:
    """What the scenarios work with.

    Attributes:
        shared: devices of which many claims may hold shares, each on a GPU of its own.
        pods: UIDs of pods that exist on the node; each share is for one of them.
        samples: calls behind a percentile.
        program: nvidia-cuda-mps-control, to measure what starting it costs; None leaves that figure out.
    """

    plugin: Plugin
    claims: Claims
    shared: Sequence[str]
    pods: Sequence[str]
    samples: int
    program: Path | None = None
    prepares: list[list[float]] = field(default_factory=list)
    unprepares: list[list[float]] = field(default_factory=list)

    def program_runs(self) -> list[float]:
        """Start NVIDIA's control program, which prints its version and ends."""
        if self.program is None:
            return []
        taken = []
        for _ in range(self.samples):
            started = time.perf_counter()
            subprocess.run([self.program, "-v"], check=False, capture_output=True)
            taken.append(time.perf_counter() - started)
        return taken

    def claim(self, device: str, number: int) -> Claim:
        """Make a claim for a share."""
        pod = self.pods[number % len(self.pods)] if self.pods else ""
        return self.claims.make(device, share=ONE_SHARE, pod=pod)

    async def first_shares(self) -> list[float]:
        """Share GPUs that were not shared: the time includes the start of MPS."""
        taken = []
        for device in self.shared:
            claim = self.claim(device, 0)
            taken.append(await self.plugin.prepare(claim))
            await self.plugin.unprepare(claim)
        return taken

    async def next_shares(self) -> tuple[list[float], list[float]]:
        """Prepare and unprepare one share after another beside one that stays."""
        stays = self.claim(self.shared[0], 0)
        await self.plugin.prepare(stays)
        prepares, unprepares = [], []
        for number in range(self.samples):
            claim = self.claim(self.shared[0], 1 + number)
            prepares.append(await self.plugin.prepare(claim))
            unprepares.append(await self.plugin.unprepare(claim))
        await self.plugin.unprepare(stays)
        return prepares, unprepares

    async def fill(self) -> None:
        """Prepare all shares of a GPU and release them again, the last one first."""
        claims = [self.claim(self.shared[0], number) for number in range(SHARES)]
        self.prepares.append([await self.plugin.prepare(claim) for claim in claims])
        self.unprepares.append([await self.plugin.unprepare(claim) for claim in reversed(claims)])


async def run(bench: Bench, floor: float, write_floor: float) -> list[Figure]:
    """All of it, once.

    Args:
        bench: what to work with.
        floor: of a prepare, in ms.
        write_floor: of an unprepare, which reads no claim.
    """
    program = bench.program_runs()
    first = await bench.first_shares()
    prepares, unprepares = await bench.next_shares()
    for _ in range(ROUNDS):
        await bench.fill()
    # The very first and the very last call start and stop MPS; they are no part of the comparison.
    low = _p50([one for times in bench.prepares for one in times[1 : 1 + EDGE]])
    high = _p50([one for times in bench.prepares for one in times[-EDGE:]])
    low_back = _p50([one for times in bench.unprepares for one in times[-1 - EDGE : -1]])
    high_back = _p50([one for times in bench.unprepares for one in times[:EDGE]])
    figures = [Figure("one run of nvidia-cuda-mps-control p50", _p50(program), "ms")] if program else []
    return [
        *figures,
        Figure("first share of a GPU p50, MPS starts", _p50(first), "ms", floor),
        Figure("share prepare p50", _p50(prepares), "ms", floor, floor + 10, "floor + 10"),
        Figure("share prepare p99", 1000 * percentile(prepares, 0.99), "ms", floor),
        Figure("share unprepare p50", _p50(unprepares), "ms", write_floor),
        Figure(f"share prepare p50, 2nd to {1 + EDGE}th of a GPU", low, "ms", floor),
        Figure(
            f"share prepare p50, {SHARES + 1 - EDGE}th to {SHARES}th of a GPU",
            high,
            "ms",
            floor,
            1.2 * low,
            "1.2 x the first",
        ),
        Figure(f"share unprepare p50, 2nd to {1 + EDGE}th of a GPU", low_back, "ms", write_floor),
        Figure(
            f"share unprepare p50, {SHARES + 1 - EDGE}th to {SHARES}th of a GPU",
            high_back,
            "ms",
            write_floor,
            1.2 * low_back,
            "1.2 x the first",
        ),
    ]


def _p50(seconds: Sequence[float]) -> float:
    """Median in ms."""
    return 1000 * statistics.median(seconds)
