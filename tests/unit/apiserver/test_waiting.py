"""Backoff, rate limit and line splitting: the pure parts that keep the client polite."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.apiserver.backoff import Backoff
from dra_gpu.apiserver.rate_limit import RateLimit
from dra_gpu.apiserver.watch_lines import LineSplitter, LineTooLongInWatchError
from tests.unit.apiserver.manual_clock import ManualClock


@given(seed=st.integers(), failures=st.integers(1, 100))
def test_a_wait_is_between_half_and_all_of_its_step_and_never_over_the_cap(seed: int, failures: int) -> None:
    backoff = Backoff(0.2, 30.0, random.Random(seed))
    waits = [backoff.next() for _ in range(failures)]
    assert all(min(30.0, 0.2 * 2**n) / 2 <= wait <= min(30.0, 0.2 * 2**n) for n, wait in enumerate(waits))


@given(seed=st.integers(), asked=st.floats(0.0, 3600.0))
def test_a_wait_that_the_server_asked_for_is_a_lower_bound(seed: int, asked: float) -> None:
    assert asked <= Backoff(0.2, 30.0, random.Random(seed)).next(asked) <= max(asked + 1.0, 0.2)


def test_success_starts_over() -> None:
    backoff = Backoff(1.0, 30.0)
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1.0


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate() -> None:
    clock = ManualClock()
    rate = RateLimit(clock, per_second=10.0, burst=5)
    times = []
    for _ in range(10):
        await rate.acquire()
        times.append(round(clock.time, 6))
    assert times == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.5]


async def test_a_rest_restores_the_burst_and_no_more() -> None:
    clock = ManualClock()
    rate = RateLimit(clock, per_second=10.0, burst=2)
    clock.time = 1000.0
    for _ in range(3):
        await rate.acquire()
    assert clock.time == pytest.approx(1000.1)


@given(lines=st.lists(st.binary().filter(lambda line: b"\n" not in line and line.strip())), cuts=st.data())
def test_lines_survive_every_way_in_which_the_network_cuts_them(lines: list[bytes], cuts: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(1_000_000)
    found: list[bytes] = []
    while stream:
        size = cuts.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == lines


@pytest.mark.parametrize("data", [b"x" * 11, b"x" * 11 + b"\n"], ids=["without an end", "with its end"])
def test_a_line_over_the_limit_is_refused(data: bytes) -> None:
    with pytest.raises(LineTooLongInWatchError):
        list(LineSplitter(10).feed(data))
