"""The reflector against a real HTTP server that breaks in every way a list and a watch can break."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.clock import Clock, SystemClock
from dra_gpu.apiserver.reflector import Change, Reflector, ReflectorLimits
from dra_gpu.apiserver.resources import NODES, Node
from dra_gpu_sim.apiserver.server import ApiServer

from .conftest import PATIENCE, SkippingClock, running

FAST = ReflectorLimits(idle=PATIENCE, between_lists=0.02, first_wait=0.01, longest_wait=0.05)


class Follower:
    """A running reflector with everything it said."""

    def __init__(self, api: HttpKubernetesApi, limits: ReflectorLimits, clock: Clock) -> None:
        self.changes: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self._moved = asyncio.Condition()
        self._pending: set[asyncio.Task[None]] = set()
        self.reflector = Reflector(
            api,
            NODES,
            on_change=self._on_change,
            on_problem=self._on_problem,
            limits=limits,
            clock=clock,
            rng=random.Random(1),
        )

    def names(self) -> set[str]:
        return {name for _, name in self.reflector.objects}

    async def until(self, condition: Callable[["Follower"], object]) -> None:
        async with asyncio.timeout(PATIENCE), self._moved:
            await self._moved.wait_for(lambda: bool(condition(self)))

    def _on_change(self, change: Change[Node]) -> None:
        shown = change.after or change.before
        assert shown is not None
        kind = "deleted" if change.after is None else "added" if change.before is None else "modified"
        self.changes.append((kind, shown.metadata.name))
        self._notify()

    def _on_problem(self, text: str) -> None:
        self.problems.append(text)
        self._notify()

    def _notify(self) -> None:
        task = asyncio.create_task(self._announce())
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _announce(self) -> None:
        async with self._moved:
            self._moved.notify_all()


@asynccontextmanager
async def following(
    server: ApiServer, api: HttpKubernetesApi, limits: ReflectorLimits = FAST, clock: Clock | None = None
) -> AsyncIterator[Follower]:
    follower = Follower(api, limits, clock or SystemClock())
    mark = server.log.count
    async with running(follower.reflector.run):
        await server.log.wait_for(lambda log: log.since(mark, verb="watch") or log.since(mark)[5:])
        yield follower


def node(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}}


async def watches(server: ApiServer, count: int, mark: int = 0) -> None:
    await server.log.wait_for(lambda log: len(log.since(mark, verb="watch")) >= count)


async def test_what_exists_and_what_changes_reaches_the_store(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("nodes", node("a"))
    async with following(server, api) as follower:
        server.put("nodes", node("b"))
        server.remove("nodes", "a")
        await follower.until(lambda f: ("deleted", "a") in f.changes)
        assert follower.names() == {"b"}
        assert follower.changes == [("added", "a"), ("added", "b"), ("deleted", "a")]


async def test_a_stream_that_the_server_closes_is_resumed_without_a_list(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    server.put("nodes", node("a"))
    async with following(server, api) as follower:
        server.close_watches()
        server.put("nodes", node("b"))
        await follower.until(lambda f: "b" in f.names())
        assert len(server.log.since(verb="list")) == 1


@pytest.mark.case("C64")
@pytest.mark.parametrize("as_status", [True, False], ids=["as a status", "as an ERROR event"])
async def test_a_410_is_answered_by_a_list_that_reveals_the_lost_deletion(
    server: ApiServer, api: HttpKubernetesApi, *, as_status: bool
) -> None:
    server.put("nodes", node("a"))
    server.put("nodes", node("b"))
    async with following(server, api) as follower:
        server.faults.stall_watches()
        server.remove("nodes", "b")
        server.compact(as_status=as_status)
        server.cut_connections()
        server.faults.resume_watches()
        await follower.until(lambda f: ("deleted", "b") in f.changes)
        assert follower.names() == {"a"}
        assert len(server.log.since(verb="list")) == 2


async def test_an_object_deleted_and_made_again_while_blind_is_two_changes(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    server.put("nodes", node("a"))
    async with following(server, api) as follower:
        server.faults.stall_watches()
        server.remove("nodes", "a")
        server.put("nodes", node("a"))
        server.compact()
        server.cut_connections()
        server.faults.resume_watches()
        await follower.until(lambda f: len(f.changes) == 3)
        assert follower.changes == [("added", "a"), ("deleted", "a"), ("added", "a")]


@pytest.mark.case("C64")
async def test_a_silent_half_open_connection_is_given_up_after_the_idle_limit(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    limits = ReflectorLimits(idle=0.1, between_lists=0.02, first_wait=0.01, longest_wait=0.05)
    async with following(server, api, limits) as follower:
        server.faults.stall_watches()
        server.put("nodes", node("a"))
        await watches(server, 3)
        server.faults.resume_watches()
        await follower.until(lambda f: "a" in f.names())


async def test_a_kind_that_never_changes_is_no_problem_and_is_never_left_unwatched(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    # A wait after a failure would be one that this test does not live to see.
    limits = ReflectorLimits(idle=0.05, between_lists=0.01, first_wait=10 * PATIENCE, longest_wait=10 * PATIENCE)
    async with following(server, api, limits) as follower:
        mark, opened_at = server.log.count, time.monotonic()
        await watches(server, 5, mark)
        assert follower.problems == []
        assert follower.reflector.age <= time.monotonic() - opened_at
        assert len(server.log.since(verb="list")) == 1


async def test_a_version_that_has_grown_old_without_a_change_is_listed_anew_and_is_no_problem_either(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    limits = ReflectorLimits(idle=0.05, between_lists=0.01, first_wait=10 * PATIENCE, longest_wait=10 * PATIENCE)
    server.put("nodes", node("a"))
    async with following(server, api, limits) as follower:
        mark = server.log.count
        server.compact()
        await server.log.wait_for(lambda log: log.since(mark, verb="list"))
        server.put("nodes", node("b"))
        await follower.until(lambda f: "b" in f.names())
        assert follower.problems == []


async def test_bookmarks_are_asked_for_and_a_resumed_watch_starts_at_the_last_one(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    async with following(server, api) as follower:
        for number in range(5):
            server.put("pods", {"metadata": {"name": f"p{number}"}}, "default")
        server.send_bookmarks()
        server.close_watches()
        await watches(server, 2)
        first, second = server.log.since(verb="watch")[:2]
        assert "allowWatchBookmarks=true" in first.query
        assert f"resourceVersion={server.store.version}&" in second.query
        assert follower.problems == []


async def test_the_server_is_asked_to_end_each_watch_at_a_different_time(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    async with following(server, api):
        for _ in range(4):
            mark = server.log.count
            server.close_watches()
            await watches(server, 1, mark)
        asked = {
            int(part.removeprefix("timeoutSeconds="))
            for record in server.log.since(verb="watch")
            for part in record.query.split("&")
            if part.startswith("timeoutSeconds=")
        }
        assert len(asked) > 1
        assert all(290 <= seconds <= 350 for seconds in asked)


@pytest.mark.case("C65")
@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_429_is_not_repeated_before_its_retry_after(
    server: ApiServer, api: HttpKubernetesApi, verb: str
) -> None:
    clock = SkippingClock()
    server.faults.fail(status=429, verb=verb, headers={"Retry-After": "7"})
    server.put("nodes", node("a"))
    async with following(server, api, clock=clock) as follower:
        await watches(server, 1)
        await server.log.wait_for(lambda log: [r for r in log.since(verb="watch") if r.status == 200])
        assert follower.names() == {"a"}
        assert any(seconds >= 7 for seconds in clock.slept)


@pytest.mark.case("C65")
async def test_server_errors_are_waited_out_with_growing_jittered_waits_up_to_the_cap(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    clock = SkippingClock()
    server.put("nodes", node("a"))
    server.faults.fail(status=500, verb="list", count=12)
    async with following(server, api, ReflectorLimits(between_lists=0.0), clock) as follower:
        await server.log.wait_for(lambda log: [r for r in log.since(verb="watch") if r.status == 200])
        assert follower.names() == {"a"}
        waits = clock.slept[:12]
        steps = [min(30.0, 0.25 * 2**number) for number in range(12)]
        assert all(step / 2 <= wait <= step for wait, step in zip(waits, steps, strict=True))
        assert len(set(waits)) == len(waits)


async def test_an_event_of_megabytes_is_taken_like_any_other(server: ApiServer, api: HttpKubernetesApi) -> None:
    server.put("nodes", node("a"))
    async with following(server, api) as follower:
        server.send_giant_event(3_000_000)
        server.put("nodes", node("b"))
        await follower.until(lambda f: "b" in f.names())
        assert follower.problems == []


async def test_an_event_over_the_limit_costs_a_list_and_not_the_cache(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    limits = ReflectorLimits(between_lists=0.02, first_wait=0.01, longest_wait=0.05, line=100_000)
    server.put("nodes", node("a"))
    async with following(server, api, limits) as follower:
        server.send_giant_event(300_000)
        await server.log.wait_for(lambda log: len(log.since(verb="list")) >= 2)
        server.put("nodes", node("b"))
        await follower.until(lambda f: "b" in f.names())


@pytest.mark.case("C65")
async def test_a_server_that_is_away_for_minutes_costs_few_attempts_and_loses_nothing(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    class WatchingClock(SkippingClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            if self.time > 1300.0:
                await server.reopen()

    clock = WatchingClock()
    server.put("nodes", node("a"))
    async with following(server, api, ReflectorLimits(), clock) as follower:
        server.refuse()
        server.remove("nodes", "a")
        server.put("nodes", node("b"))
        await follower.until(lambda f: f.names() == {"b"})
        assert clock.time > 1300.0
        assert len(follower.problems) < 30


async def test_a_server_that_ends_every_watch_at_once_is_not_hurried(server: ApiServer, api: HttpKubernetesApi) -> None:
    clock = SkippingClock()
    async with following(server, api, ReflectorLimits(), clock):
        for _ in range(8):
            mark = server.log.count
            server.close_watches()
            await watches(server, 1, mark)
        assert sum(clock.slept) > 8.0


@pytest.mark.case("C64")
async def test_endless_410_answers_never_cause_more_than_one_list_a_second(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    clock = SkippingClock()
    server.faults.fail(status=410, verb="watch", count=10)
    async with following(server, api, ReflectorLimits(), clock):
        await server.log.wait_for(lambda log: [r for r in log.since(verb="watch") if r.status == 200])
        assert len(server.log.since(verb="list")) == 11
        assert clock.time - 1000.0 >= 10.0


@pytest.mark.case("C64")
async def test_410_answers_between_healthy_events_never_cause_more_than_one_list_a_second(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    clock = SkippingClock()
    async with following(server, api, ReflectorLimits(), clock) as follower:
        for number in range(5):
            mark = server.log.count
            server.put("nodes", node(f"n{number}"))
            await follower.until(lambda f, name=f"n{number}": name in f.names())
            server.compact()
            server.close_watches()
            await server.log.wait_for(lambda log, mark=mark: log.since(mark, verb="list"))
            await server.log.wait_for(lambda log, mark=mark: log.since(mark, verb="watch")[1:])
        assert clock.time - 1000.0 >= len(server.log.since(verb="list")) - 1


async def test_a_server_that_starts_anew_with_lower_versions_is_listed_again(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    async with following(server, api) as follower:
        server.faults.fail(status=504, verb="watch", count=6, message="Too large resource version")
        server.close_watches()
        await server.log.wait_for(lambda log: len(log.since(verb="list")) >= 2)
        server.put("nodes", node("a"))
        await follower.until(lambda f: "a" in f.names())


async def test_one_object_that_cannot_be_decoded_is_reported_and_the_others_are_served(
    server: ApiServer, api: HttpKubernetesApi
) -> None:
    server.put("nodes", node("a"))
    server.put("nodes", {"metadata": {"name": "bad", "labels": "no mapping"}})
    async with following(server, api) as follower:
        server.put("nodes", {"metadata": {"name": "worse", "labels": 7}})
        server.put("nodes", node("b"))
        await follower.until(lambda f: "b" in f.names())
        assert follower.names() == {"a", "b"}
        assert ["bad" in follower.problems[0], "worse" in follower.problems[1]] == [True, True]
