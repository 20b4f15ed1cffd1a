"""What is measured, and how. Each scenario leaves nothing prepared behind."""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_gpu_sim.local.kubelet import Claim
from tests.bench import partitions, shares
from tests.bench.cluster import Claims
from tests.bench.figures import Figure, percentile
from tests.bench.plugin import Plugin

NAMES = ("fresh", "repeated", "parallel", "slow", "held", "shares", "partitions")


@dataclass(slots=True)
class Setup:
    """What the scenarios work with.

    Attributes:
        devices: devices that one claim holds alone.
        monitors: devices that any number of claims may hold, with admin access.
        state_dir: a directory in the file system in which the plugin keeps its state.
        config: opaque parameters that make the plugin call its hardware.
        slow: within it each such call takes 20 ms longer; None if that cannot be done.
        claims_total: claims of the parallel scenarios; `at_once` of them run at the same time.
        shared: devices of which many claims may hold shares, each on a GPU of its own.
        mps_program: nvidia-cuda-mps-control, if its cost is to be shown.
        partitions: two partitions of one slice of one GPU; `nvml` and `spare_gpu` tell where NVML's own time is
            measured.
        pods: UIDs of pods that exist on the node; each share is for one of them.
        held: the two numbers of held claims that are compared.
        only: which scenarios to run.
    """

    plugin: Plugin
    claims: Claims
    devices: Sequence[str]
    monitors: Sequence[str]
    state_dir: Path
    config: Mapping[str, Any]
    slow: Callable[[], AbstractContextManager[None]] | None = None
    claims_total: int = 160
    at_once: int = 32
    samples: int = 160
    shared: Sequence[str] = ()
    pods: Sequence[str] = ()
    partitions: Sequence[str] = ()
    nvml: Path | None = None
    spare_gpu: int = 0
    mps_program: Path | None = None
    held: tuple[int, int] = (10, 1000)
    only: Sequence[str] = NAMES
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Floor:
    """What a prepare cannot do without, in ms, p50: reading the claim, making a record durable, and the call itself."""

    claim_get: float
    durable_write: float
    empty_call: float

    @property
    def total(self) -> float:
        return self.claim_get + self.durable_write + self.empty_call


async def run(setup: Setup) -> list[Figure]:
    """The scenarios of `setup.only`, once."""
    floor = await _floor(setup)
    figures = [
        Figure("floor: claim GET p50", floor.claim_get, "ms"),
        Figure("floor: write + fsync + rename p50", floor.durable_write, "ms"),
        Figure("floor: empty call p50", floor.empty_call, "ms"),
    ]
    scenarios: dict[str, Callable[[], Awaitable[list[Figure]]]] = {
        "fresh": lambda: _fresh(setup, floor),
        "repeated": lambda: _repeated(setup, floor),
        "parallel": lambda: _parallel(setup),
        "slow": lambda: _slow_hardware(setup),
        "held": lambda: _held(setup, floor),
        "shares": lambda: _shares(setup, floor),
        "partitions": lambda: _partitions(setup),
    }
    for name in NAMES:
        if name in setup.only:
            figures += await scenarios[name]()
    setup.claims.remove_all()
    return figures


async def _floor(setup: Setup) -> Floor:
    claim = setup.claims.make(setup.devices[0])
    gets = [setup.claims.read(claim) for _ in range(setup.samples)]
    empty = [await setup.plugin.prepare() for _ in range(setup.samples)]
    writes = [_durable_write(setup.state_dir) for _ in range(setup.samples)]
    return Floor(_p50(gets), _p50(writes), _p50(empty))


def _durable_write(directory: Path) -> float:
    path = directory / f".bench-{os.getpid()}"
    temporary = path.with_suffix(".tmp")
    started = time.perf_counter()
    with temporary.open("wb") as file:
        file.write(b"x" * 1024)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    took = time.perf_counter() - started
    path.unlink()
    return took


async def _fresh(setup: Setup, floor: Floor) -> list[Figure]:
    """Prepare and unprepare claims that the plugin has never seen, one after another."""
    prepares, unprepares = [], []
    for number in range(setup.samples):
        claim = setup.claims.make(setup.devices[number % len(setup.devices)])
        prepares.append(await setup.plugin.prepare(claim))
        unprepares.append(await setup.plugin.unprepare(claim))
    limit = floor.total + 5
    return [
        Figure("fresh prepare p50", _p50(prepares), "ms", floor.total, limit, "floor + 5"),
        Figure("fresh prepare p99", 1000 * percentile(prepares, 0.99), "ms", floor.total),
        Figure("unprepare p50", _p50(unprepares), "ms", floor.durable_write + floor.empty_call),
        Figure("unprepare p99", 1000 * percentile(unprepares, 0.99), "ms", floor.durable_write + floor.empty_call),
    ]


async def _repeated(setup: Setup, floor: Floor) -> list[Figure]:
    """Prepare a prepared claim again; the claim must not be read for it."""
    claim = setup.claims.make(setup.devices[0])
    await setup.plugin.prepare(claim)
    reads = setup.claims.api.claim_reads()
    again = [await setup.plugin.prepare(claim) for _ in range(setup.samples)]
    reads_after = setup.claims.api.claim_reads()
    await setup.plugin.unprepare(claim)
    figures = [Figure("repeated prepare p50", _p50(again), "ms", floor.empty_call, 2.0, "2")]
    if reads is not None and reads_after is not None:
        figures.append(Figure("claim GETs of repeated prepares", reads_after - reads, "", 0, 0, "0"))
    else:
        setup.notes.append("claim GETs of repeated prepares: this API server does not count requests")
    return figures


async def _parallel(setup: Setup) -> list[Figure]:
    """Many claims at once against the same number one after another."""
    if not setup.monitors:
        setup.notes.append("parallel calls: skipped, they need devices that many claims may hold (--monitors)")
        return []
    serial_claims = _monitor_claims(setup, setup.claims_total)
    started = time.perf_counter()
    for claim in serial_claims:
        await setup.plugin.prepare(claim)
    serial = time.perf_counter() - started
    await _release(setup, serial_claims)

    parallel_claims = _monitor_claims(setup, setup.claims_total)
    slots = asyncio.Semaphore(setup.at_once)

    async def one(claim: Claim) -> None:
        async with slots:
            await setup.plugin.prepare(claim)

    started = time.perf_counter()
    results = await asyncio.gather(*map(one, parallel_claims), return_exceptions=True)
    parallel = time.perf_counter() - started
    await _release(setup, parallel_claims)
    failed = [result for result in results if isinstance(result, BaseException)]
    setup.notes += [f"parallel calls: {error}" for error in failed[:3]]
    name = f"{setup.claims_total} claims by {setup.at_once} calls at once"
    return [
        Figure(f"{setup.claims_total} claims one by one", 1000 * serial, "ms"),
        Figure(name, 1000 * parallel, "ms", None, 1100 * serial, "1.1 x serial"),
        Figure(f"{name}: failed", len(failed), "", 0, 0, "0"),
    ]


async def _slow_hardware(setup: Setup) -> list[Figure]:
    """The same where each prepare calls slow hardware: calls for different GPUs have to overlap."""
    if setup.slow is None:
        setup.notes.append("slow hardware: skipped, no way to slow it down was given (--slow-on, --slow-off)")
        return []
    at_once = min(setup.at_once, len(setup.devices))
    rounds = max(1, setup.claims_total // at_once)
    serial = parallel = 0.0
    with setup.slow():
        for _ in range(rounds):
            claims = [setup.claims.make(device, config=setup.config) for device in setup.devices[:at_once]]
            started = time.perf_counter()
            for claim in claims:
                await setup.plugin.prepare(claim)
            serial += time.perf_counter() - started
            await _release(setup, claims)
        for _ in range(rounds):
            claims = [setup.claims.make(device, config=setup.config) for device in setup.devices[:at_once]]
            started = time.perf_counter()
            await asyncio.gather(*map(setup.plugin.prepare, claims))
            parallel += time.perf_counter() - started
            await _release(setup, claims)
    total = rounds * at_once
    return [
        Figure(f"slow hardware: {total} claims one by one", 1000 * serial, "ms"),
        Figure(
            f"slow hardware: {total} claims by {at_once} calls at once",
            1000 * parallel,
            "ms",
            1000 * serial / at_once,
            300 * serial,
            "0.3 x serial",
        ),
    ]


async def _held(setup: Setup, floor: Floor) -> list[Figure]:
    """A fresh prepare beside few and beside many held claims."""
    if not setup.monitors:
        setup.notes.append("held claims: skipped, they need devices that many claims may hold (--monitors)")
        return []
    few, many = setup.held
    held = _monitor_claims(setup, few)
    await _hold(setup, held)
    beside_few = await _fresh_p50(setup)
    more = _monitor_claims(setup, many - few)
    await _hold(setup, more)
    beside_many = await _fresh_p50(setup)
    await _release(setup, held + more)
    return [
        Figure(f"fresh prepare p50, {few} held", beside_few, "ms", floor.total),
        Figure(
            f"fresh prepare p50, {many} held", beside_many, "ms", floor.total, 1.2 * beside_few, f"1.2 x {few} held"
        ),
    ]


async def _shares(setup: Setup, floor: Floor) -> list[Figure]:
    if not setup.shared:
        setup.notes.append("shares: skipped, they need devices of which claims may hold shares (--shared)")
        return []
    bench = shares.Bench(setup.plugin, setup.claims, setup.shared, setup.pods, setup.samples, setup.mps_program)
    return await shares.run(bench, floor.total, floor.durable_write + floor.empty_call)


async def _partitions(setup: Setup) -> list[Figure]:
    if not setup.partitions or setup.nvml is None:
        setup.notes.append("partitions: skipped, they need two of a GPU (--partitions) and its library (--nvml)")
        return []
    bench = partitions.Bench(
        setup.plugin,
        setup.claims,
        setup.partitions,
        setup.samples,
        setup.nvml,
        setup.spare_gpu,
        setup.state_dir / "locks",
    )
    return await partitions.run(bench)


async def _fresh_p50(setup: Setup) -> float:
    prepares = []
    for number in range(setup.samples):
        claim = setup.claims.make(setup.devices[number % len(setup.devices)])
        prepares.append(await setup.plugin.prepare(claim))
        await setup.plugin.unprepare(claim)
    return _p50(prepares)


def _monitor_claims(setup: Setup, count: int) -> list[Claim]:
    return [setup.claims.make(setup.monitors[number % len(setup.monitors)], admin=True) for number in range(count)]


async def _hold(setup: Setup, claims: Sequence[Claim]) -> None:
    for claim in claims:
        await setup.plugin.prepare(claim)


async def _release(setup: Setup, claims: Sequence[Claim]) -> None:
    for claim in claims:
        await setup.plugin.unprepare(claim)


def _p50(seconds: Sequence[float]) -> float:
    """Median in ms."""
    return 1000 * statistics.median(seconds)
