"""Claims that are wrong, on purpose or by accident, through the shipped process.

None ends it, is accepted wrongly, makes a file where none belongs, or leaves anything behind.
"""

import random
import time

import pytest

from dra_gpu_sim.local.cluster import DRIVER
from dra_gpu_sim.local.kubelet import Claim
from tests.component.node import hostile_claims
from tests.component.node.conftest import opaque
from tests.component.node.hostile_claims import GOOD_CONFIG, UIDS, devices_of, good_allocation, interval_of, mutated
from tests.component.node.node_under_fire import foreign_files, records, status_of

VALUES = {"": 0, "Default": 0, "Short": 1, "Medium": 2, "Long": 3}
QUICK = 30.0  # seconds: a claim that can never be prepared is not tried until the kubelet's patience ends
GROWTH_KIB = 24 * 1024


class Siege:
    """A node that is asked for one bad claim after the other."""

    def __init__(self, world) -> None:
        self.world = world
        self.before = world.node.snapshot()
        self.files = foreign_files(world)
        self.number = 0

    def put(self, allocation):
        self.number += 1
        name = f"c{self.number}"
        made = self.world.api.put(
            "resourceclaims", {"metadata": {"name": name}, "status": {"allocation": allocation}}, "default"
        )
        return Claim("default", name, made["metadata"]["uid"])

    async def ask(self, claim):
        started = time.monotonic()
        answer = (await self.world.prepare(claim))[claim.uid]
        assert time.monotonic() - started < QUICK, answer
        assert not (answer.devices and answer.error)
        return answer

    async def give_back(self, claim):
        assert (await self.world.unprepare(claim))[claim.uid] == ""

    def nothing_left(self):
        assert self.world.plugin.process.returncode is None
        assert self.world.node.snapshot() == self.before
        assert records(self.world) == {}
        assert self.world.cdi_files == []
        assert foreign_files(self.world) == self.files
        assert "internal error" not in self.world.plugin.read_log()
        assert "unexpected error" not in self.world.plugin.read_log()


@pytest.fixture
async def siege(make_world) -> Siege:
    world = await make_world(gpus=2)
    await world.start(devices=4)
    return Siege(world)


def one_gpu(**more):
    return {"request": "r", "driver": DRIVER, "pool": "node-0", "device": "gpu-0", **more}


async def test_seven_hundred_mutated_configs_are_taken_for_what_they_are(siege):
    rng = random.Random(1)
    await siege.give_back(siege.put({"devices": {"results": [one_gpu()]}}))
    rss = status_of(siege.world.plugin.pid, "VmRSS")

    for _ in range(700):
        config = mutated(GOOD_CONFIG, rng)
        claim = siege.put({"devices": {"results": [one_gpu()], "config": [opaque(config)]}})
        answer = await siege.ask(claim)
        interval = interval_of(config)
        other_kind = isinstance(config, dict) and config.get("kind") == "MigDeviceConfig"
        assert other_kind or bool(answer.devices) == (interval is not None), (config, answer)
        if answer.devices:
            assert siege.world.time_slices() == [VALUES[interval or ""], 0]
            await siege.give_back(claim)
        else:
            assert claim.name in answer.error

    siege.nothing_left()
    assert status_of(siege.world.plugin.pid, "VmRSS") - rss < GROWTH_KIB


async def test_six_hundred_mutated_allocations_are_taken_for_what_they_are(siege):
    rng = random.Random(2)
    present = {"gpu-0", "gpu-1"}

    for _ in range(600):
        allocation = mutated(good_allocation(), rng)
        claim = siege.put(allocation)
        answer = await siege.ask(claim)
        ours = devices_of(allocation)
        if answer.error:
            assert claim.name in answer.error
        else:
            assert ours is not None, (allocation, answer)
            assert set(ours) <= present, (allocation, answer)
            assert [device.device for device in answer.devices] == ours
        await siege.give_back(claim)

    siege.nothing_left()


async def test_a_uid_that_no_file_could_be_named_after_is_refused(siege):
    claims = [Claim("default", "c", uid) for uid in UIDS]

    answers = await siege.world.prepare(*claims)
    given_back = await siege.world.unprepare(*claims)

    assert {uid for uid, answer in answers.items() if answer.error} == set(UIDS)
    assert {uid for uid, error in given_back.items() if error} == {""}
    siege.nothing_left()


NO_NAMES = [
    ("..", ".."),
    ("default", "../../../nodes/node-0"),
    ("a b", "c d"),
    ("default", "c\r\nX-Injected: yes\r\n\r\n"),
    ("default", "ä" * 300),
    ("default", "c?watch=true"),
    ("default", "c%2F..%2F"),
    ("", ""),
    ("x" * 5_000, "y" * 50_000),
]


async def test_a_claim_name_that_is_none_is_refused_at_once_by_its_own_name(siege):
    for namespace, name in NO_NAMES:
        answer = await siege.ask(Claim(namespace, name, "11111111-1111-1111-1111-111111111111"))

        assert "11111111" in answer.error
        assert len(answer.error) < 2_000
    siege.nothing_left()


async def test_forty_results_are_answered_or_refused_as_a_whole(siege):
    results = [one_gpu(request=f"r{number}", device=f"gpu-{number}") for number in range(40)]

    answer = await siege.ask(siege.put({"devices": {"results": results}}))

    assert "gpu-2" in answer.error
    siege.nothing_left()


async def test_one_gpu_for_two_requests_of_a_claim_is_refused(siege):
    results = [one_gpu(request="a"), one_gpu(request="b")]

    answer = await siege.ask(siege.put({"devices": {"results": results}}))

    assert "gpu-0" in answer.error
    assert "twice" in answer.error
    siege.nothing_left()


async def test_results_of_other_pools_and_drivers_are_nothing_of_ours(siege):
    for more in ({"pool": "node-1"}, {"pool": ""}, {"driver": "GPU.nvidia.com"}, {"driver": ""}, {"pool": "node-0/x"}):
        answer = await siege.ask(siege.put({"devices": {"results": [one_gpu(**more)]}}))

        assert answer.error == ""
        assert answer.devices == ()
    siege.nothing_left()


async def test_a_share_that_no_cdi_device_could_be_named_after_is_refused(siege):
    for share in ("../../x", "a b", "x" * 300, "\n", "ä"):
        answer = await siege.ask(siege.put({"devices": {"results": [one_gpu(shareID=share)]}}))

        assert "share" in answer.error
    siege.nothing_left()


async def test_a_request_may_be_called_anything(siege):
    for name in ("../../x", "a\nb", "\x00", "x" * 5_000, "a/b/c", "/", ""):
        claim = siege.put({"devices": {"results": [one_gpu(request=name)]}})

        answer = await siege.ask(claim)

        assert answer.devices[0].request_names == (name.partition("/")[0],)
        await siege.give_back(claim)
    siege.nothing_left()


async def test_a_config_ten_kibibytes_long_or_a_hundred_levels_deep_is_refused_in_a_few_words(siege):
    deep: dict = {}
    for _ in range(100):
        deep = {"sharing": deep}
    for config in ({**GOOD_CONFIG, "x" * 10_000: 1}, {**GOOD_CONFIG, **deep}, {**GOOD_CONFIG, "kind": "y" * 10_000}):
        answer = await siege.ask(siege.put({"devices": {"results": [one_gpu()], "config": [opaque(config)]}}))

        assert answer.error
        assert len(answer.error) < 2_000
    siege.nothing_left()


def test_the_generator_makes_good_ones_too():
    rng = random.Random(1)

    found = [interval_of(hostile_claims.mutated(GOOD_CONFIG, rng)) for _ in range(700)]

    assert 20 < sum(one is not None for one in found) < 350
