"""kill -9 at every boundary of prepare, unprepare, repair and recovery: nothing leaked, nothing held twice."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from dra_gpu.claims.outcome import Prepared, Refusal
from dra_gpu.claims.record import State
from dra_gpu.claims.shares import share_name
from dra_gpu.mps.service import Limits
from tests.component.claims.dying_node import CLAIM, PARTITION, PLACE, POD, SHARER, TENANT, MortalNode
from tests.unit.claims.world import mig_uuid, ref, share, share_id

pytestmark = [pytest.mark.case("C31"), pytest.mark.case("C01"), pytest.mark.case("C14")]

LONG_ON_BOTH = 2
GIB = 2**30


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Callable[[str, str], list[Path]]:
    """Kill a node at every boundary of a scenario; return the disks that they left."""

    @cache
    def kill(scenario: str, kind: str) -> list[Path]:
        directory = tmp_path_factory.mktemp(f"{scenario}-{kind}")
        done = subprocess.run(
            [sys.executable, "-m", "tests.component.claims.dying_node", scenario, kind, directory],
            capture_output=True,
            text=True,
            check=True,
        )
        killed = int(done.stdout.splitlines()[-1])
        assert killed >= 8, done.stderr
        return [directory / str(number) for number in range(killed)]

    return kill


@pytest.fixture
def sweep(swept, tmp_path) -> Callable[..., list[Path]]:
    """Return the disks of a scenario for a test to go on with: copies, since several tests do."""

    def disks(scenario: str, kind: str = "whole") -> list[Path]:
        return [shutil.copytree(disk, tmp_path / disk.name) for disk in swept(scenario, kind)]

    return disks


async def assert_prepared(node: MortalNode) -> None:
    """The claim has one record, one file, both settings: no more and no less."""
    [record] = await node.journal.records()
    assert (record.ref, record.state, record.boot_id) == (CLAIM, State.PREPARED, node.boot)
    assert node.specs.claim_uids() == {CLAIM.uid}
    assert len(node.vendor.settings()) == LONG_ON_BOTH


async def assert_nothing_left(node: MortalNode) -> None:
    assert await node.journal.records() == []
    assert node.specs.claim_uids() == frozenset()
    assert node.vendor.settings() == {}


@pytest.mark.parametrize("scenario", ["prepare", "unprepare", "repair"])
def test_the_next_prepare_finds_its_way_and_unprepare_restores_the_beginning(sweep, scenario):
    async def check(disk: Path) -> None:
        async with MortalNode(disk).running() as node:
            assert isinstance(await node.prepare(CLAIM), Prepared)
            await assert_prepared(node)
            assert await node.unprepare(CLAIM) is None
            await assert_nothing_left(node)

    for disk in sweep(scenario):
        asyncio.run(check(disk))


@pytest.mark.parametrize("scenario", ["prepare", "unprepare", "repair"])
def test_the_next_unprepare_restores_the_beginning(sweep, scenario):
    async def check(disk: Path) -> None:
        async with MortalNode(disk).running() as node:
            assert await node.unprepare(CLAIM) is None
            await assert_nothing_left(node)

    for disk in sweep(scenario):
        asyncio.run(check(disk))


@pytest.mark.parametrize("scenario", ["prepare", "unprepare", "repair"])
def test_another_claim_gets_the_gpu_or_is_told_who_has_it_and_never_both(sweep, scenario):
    async def check(disk: Path) -> None:
        async with MortalNode(disk).running() as node:
            other = node.api.add(ref("u2", "other"), "gpu-0")
            answer = await node.prepare(other)
            holders = [record.ref.uid for record in await node.journal.records() if record.state is State.PREPARED]
            if isinstance(answer, Refusal):
                assert "still held by claim team-a/job (u1)" in answer.message
                assert holders == ["u1"]
            else:
                assert holders == ["u2"]
                assert node.specs.claim_uids() == {"u2"}
            assert await node.unprepare(CLAIM) is None
            assert isinstance(await node.prepare(other), Prepared)
            assert await node.unprepare(other) is None
            await assert_nothing_left(node)

    for disk in sweep(scenario):
        asyncio.run(check(disk))


@pytest.mark.parametrize("scenario", ["prepare", "unprepare", "repair"])
def test_recovery_leaves_all_of_a_claim_or_nothing(sweep, scenario):
    async def check(disk: Path) -> None:
        async with MortalNode(disk).running() as node:
            await node.reconciler.recover()
            if await node.journal.records():
                await assert_prepared(node)
            else:
                await assert_nothing_left(node)

    for disk in sweep(scenario):
        asyncio.run(check(disk))


@pytest.mark.case("C22")
def test_a_recovery_after_a_reboot_that_is_killed_is_finished_by_the_kubelets_prepare(sweep):
    async def check(disk: Path) -> None:
        async with MortalNode(disk, boot="boot-2").running() as node:
            await node.reconciler.recover()
            assert isinstance(await node.prepare(CLAIM), Prepared)
            await assert_prepared(node)
            assert await node.unprepare(CLAIM) is None
            await assert_nothing_left(node)

    for disk in sweep("reboot"):
        asyncio.run(check(disk))


async def assert_shared(node: MortalNode) -> None:
    """The claim has one record, one share, one limit, one file: no more and no less."""
    [record] = await node.journal.records()
    assert (record.ref, record.state, record.boot_id) == (SHARER, State.PREPARED, node.boot)
    gpu = node.uuid("gpu-2")
    assert node.mps.held == {(gpu, share_name(share_id(5))): Limits(20, 10 * GIB)}
    assert node.vendor.settings() == {f"{gpu} /kubepods/{POD}": 10 * GIB}
    assert node.specs.claim_uids() == {SHARER.uid}


async def assert_no_share_left(node: MortalNode) -> None:
    await assert_nothing_left(node)
    assert node.mps.held == {}


@pytest.mark.parametrize("scenario", ["prepare", "unprepare", "repair"])
def test_a_share_is_found_by_the_next_prepare_and_given_up_by_the_next_unprepare(sweep, scenario):
    async def check(disk: Path) -> None:
        async with MortalNode(disk).running() as node:
            assert isinstance(await node.prepare(SHARER), Prepared)
            await assert_shared(node)
            assert await node.unprepare(SHARER) is None
            await assert_no_share_left(node)

    for disk in sweep(scenario, "share"):
        asyncio.run(check(disk))


@pytest.mark.parametrize("scenario", ["prepare", "unprepare", "repair"])
def test_a_share_is_all_there_or_not_at_all_after_recovery_and_its_part_is_never_promised_twice(sweep, scenario):
    async def check(disk: Path) -> None:
        async with MortalNode(disk).running() as node:
            other = node.api.add(ref("u6", "other"), share("gpu-2-shared", 6, percent=81))
            answer = await node.prepare(other)
            kept = SHARER.uid in {record.ref.uid for record in await node.journal.records()}
            assert isinstance(answer, Refusal) is kept
            assert len(node.mps.held) <= 1
            assert await node.unprepare(other) is None
            await node.reconciler.recover()
            await (assert_shared(node) if await node.journal.records() else assert_no_share_left(node))

    for disk in sweep(scenario, "share"):
        asyncio.run(check(disk))


@pytest.mark.case("C22")
def test_a_share_is_made_anew_after_a_reboot_whose_recovery_is_killed(sweep):
    async def check(disk: Path) -> None:
        async with MortalNode(disk, boot="boot-2").running() as node:
            await node.reconciler.recover()
            assert isinstance(await node.prepare(SHARER), Prepared)
            await assert_shared(node)
            assert await node.unprepare(SHARER) is None
            await assert_no_share_left(node)

    for disk in sweep("reboot", "share"):
        asyncio.run(check(disk))


async def assert_partitioned(node: MortalNode) -> None:
    """The claim has one record, one partition on a GPU in MIG mode, one share of it, one file."""
    [record] = await node.journal.records()
    assert (record.ref, record.state, record.boot_id) == (TENANT, State.PREPARED, node.boot)
    gpu = node.uuid(PARTITION)
    assert node.vendor.mig_modes == {gpu: True}
    assert set(node.vendor.instances) == {(gpu, PLACE)}
    assert node.mps.held == {(mig_uuid(gpu, PLACE), share_name(share_id(7))): Limits(20, 2 * GIB)}
    assert node.specs.claim_uids() == {TENANT.uid}


async def assert_no_partition_left(node: MortalNode) -> None:
    await assert_no_share_left(node)
    assert node.vendor.instances == {}
    assert not any(node.vendor.mig_modes.values())


@pytest.mark.case("C74")
@pytest.mark.parametrize("scenario", ["prepare", "unprepare", "repair"])
def test_a_partition_is_found_by_the_next_prepare_and_destroyed_by_the_next_unprepare(sweep, scenario):
    async def check(disk: Path) -> None:
        async with MortalNode(disk).running() as node:
            assert isinstance(await node.prepare(TENANT), Prepared)
            await assert_partitioned(node)
            assert await node.unprepare(TENANT) is None
            await assert_no_partition_left(node)

    for disk in sweep(scenario, "partition"):
        asyncio.run(check(disk))


@pytest.mark.parametrize("scenario", ["prepare", "unprepare", "repair"])
def test_a_partition_is_all_there_or_not_at_all_after_recovery_and_nobody_else_has_its_place(sweep, scenario):
    async def check(disk: Path) -> None:
        async with MortalNode(disk).running() as node:
            other = node.api.add(ref("u8", "other"), "gpu-3-mig-3g40gb-9-0")
            answer = await node.prepare(other)
            kept = TENANT.uid in {record.ref.uid for record in await node.journal.records()}
            assert isinstance(answer, Refusal) is kept
            assert len(node.vendor.instances) <= 1
            assert await node.unprepare(other) is None
            await node.reconciler.recover()
            await (assert_partitioned(node) if await node.journal.records() else assert_no_partition_left(node))

    for disk in sweep(scenario, "partition"):
        asyncio.run(check(disk))


@pytest.mark.case("C22")
def test_a_partition_is_made_anew_after_a_reboot_whose_recovery_is_killed(sweep):
    async def check(disk: Path) -> None:
        async with MortalNode(disk, boot="boot-2").running() as node:
            await node.reconciler.recover()
            assert isinstance(await node.prepare(TENANT), Prepared)
            await assert_partitioned(node)
            assert await node.unprepare(TENANT) is None
            await assert_no_partition_left(node)

    for disk in sweep("reboot", "partition"):
        asyncio.run(check(disk))
