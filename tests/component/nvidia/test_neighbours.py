"""Two instances of the driver on a node: one that waits for events lets go when the other changes a MIG mode."""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia.neighbours import Neighbours

PATIENCE = 60.0
# The other instance: it says when its GPUs are watched, each time anew.
WATCHER = """
import asyncio, sys
from pathlib import Path
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.vendors.nvidia.vendor import NvidiaHost, NvidiaVendor

async def main(driver, dev, sys_root, locks):
    vendor = NvidiaVendor(NvidiaHost(
        HostDirectory.same(Path(driver)), HostDirectory.same(Path(dev)), Path(sys_root), lock_dir=Path(locks)))
    gpus = (await vendor.scan()).gpus
    await vendor.watch_health(gpus, lambda event: None, lambda watched: print(len(watched), flush=True))

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def watched_beside(node, locks: Path):
    """Have another process wait for the node's events."""
    places = [str(place) for place in (node.driver_root, node.dev_root, node.root / "sys", locks)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WATCHER, *places, env=node.environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"1\n"
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_a_mig_mode_is_changed_although_another_instance_waits_for_events(make_bed, tmp_path):
    bed = make_bed(lock_dir=tmp_path)
    gpu = await bed.gpu()

    async with watched_beside(bed.node, tmp_path):
        await bed.vendor.set_mig_mode(gpu, enabled=True)

        assert bed.modes() == (True, True)


async def test_the_other_instance_waits_for_events_again_afterwards(make_bed, tmp_path):
    bed = make_bed(lock_dir=tmp_path)
    gpu = await bed.gpu()

    async with watched_beside(bed.node, tmp_path):
        await bed.vendor.set_mig_mode(gpu, enabled=True)

        async with asyncio.timeout(PATIENCE):
            while not Neighbours(tmp_path).watched:
                await asyncio.sleep(0.02)


async def test_who_does_not_know_of_the_other_instance_is_told_who_holds_the_gpu(make_bed, tmp_path):
    bed = make_bed()
    gpu = await bed.gpu()

    async with watched_beside(bed.node, tmp_path):
        with pytest.raises(VendorError) as refusal:
            await bed.vendor.set_mig_mode(gpu, enabled=True)

    assert refusal.value.kind is FailureKind.IN_USE


def test_a_lock_that_nobody_holds_asks_for_nothing(tmp_path):
    neighbours = Neighbours(tmp_path)
    with neighbours.asked(), neighbours.watching():
        assert (neighbours.wanted, neighbours.watched) == (True, True)

    assert (neighbours.wanted, neighbours.watched) == (False, False)


def test_without_a_directory_nobody_is_asked():
    neighbours = Neighbours(None)

    with neighbours.asked(), neighbours.watching():
        assert (neighbours.wanted, neighbours.watched) == (False, False)


def test_files_that_cannot_be_made_stand_in_nobodys_way(tmp_path):
    neighbours = Neighbours(tmp_path / "missing")

    with neighbours.asked(), neighbours.watching():
        assert (neighbours.wanted, neighbours.watched) == (False, False)
