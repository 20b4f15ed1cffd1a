"""Resetting a GPU, on simulated hardware that is as strict as the real: nobody may have it open, this process least."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest

from dra_gpu.vendors.base import FailureKind, VendorError

PATIENCE = 60.0
RESET = "nvidia-smi --gpu-reset"


@pytest.fixture
def lonely(make_bed, tmp_path):
    """A node on which no other test's processes are seen."""
    return make_bed(gpus=2, proc_root=tmp_path)


@contextmanager
def opened(path):
    """A process that has a device node open; gives its id."""
    # There is no driver behind the node, so that its path is all that can be opened; procfs shows the same of it.
    program = f"import os\nos.open({str(path)!r}, os.O_PATH)\nprint('open', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "open\n"
            yield holder.pid
        finally:
            holder.kill()


async def test_a_gpu_that_nobody_has_is_reset_and_no_other(lonely):
    first, second = (await lonely.vendor.scan()).gpus

    await lonely.vendor.reset_gpu(second)

    assert [(call.gpu, call.result) for call in lonely.node.calls(RESET)] == [(1, 0)]
    assert (await lonely.vendor.scan()).gpus[0] == first


async def test_what_a_reset_destroys_is_gone(lonely):
    gpu = await lonely.gpu()
    await lonely.vendor.set_mig_mode(gpu, enabled=True)
    placement = next(one for one in gpu.mig_profiles if one.name == "1g.10gb").placements[0]
    await lonely.vendor.create_mig_instance(gpu, placement)

    await lonely.vendor.reset_gpu(gpu)

    assert not lonely.instances()


async def test_whoever_waits_for_events_makes_room_and_hears_of_events_afterwards(lonely):
    gpus = (await lonely.vendor.scan()).gpus
    ready, reported = asyncio.Event(), asyncio.Event()
    watching = asyncio.create_task(lonely.vendor.watch_health(gpus, lambda _: reported.set(), lambda _: ready.set()))
    try:
        await asyncio.wait_for(ready.wait(), PATIENCE)

        await asyncio.wait_for(lonely.vendor.reset_gpu(gpus[0]), PATIENCE)

        async with asyncio.timeout(PATIENCE):
            while not reported.is_set():  # what happens before it watches again is not reported
                lonely.node.xid(1, 43)
                await asyncio.sleep(0.05)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def test_who_asks_nvml_during_a_reset_waits_until_it_is_over(lonely):
    gpu = await lonely.gpu()
    lonely.node.inject(RESET, delay_ms=300)
    resetting = asyncio.create_task(lonely.vendor.reset_gpu(gpu))
    while not lonely.vendor._gate.closing:
        await asyncio.sleep(0)

    seen = await asyncio.wait_for(lonely.vendor.scan(), PATIENCE)

    assert resetting.done()
    assert len(seen.gpus) == 2
    await resetting


async def test_whoever_has_the_device_open_is_named_and_nothing_is_tried(make_bed, tmp_path):
    bed = make_bed(proc_root=tmp_path)
    gpu = await bed.gpu()
    with opened(bed.node.dev_root / "nvidia0") as pid:
        (tmp_path / str(pid)).symlink_to(f"/proc/{pid}")

        with pytest.raises(VendorError, match=rf"cannot be reset while pid {pid} \(.*python.*nvidia0 open") as refused:
            await bed.vendor.reset_gpu(gpu)

    assert refused.value.kind is FailureKind.IN_USE
    assert bed.node.calls(RESET) == []


async def test_the_persistence_daemon_is_left_to_nvidia_smi(make_bed, tmp_path):
    bed = make_bed(proc_root=tmp_path)
    gpu = await bed.gpu()
    process = tmp_path / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "7").symlink_to(bed.node.dev_root / "nvidia0")
    (process / "comm").write_text("nvidia-persiste\n")

    await bed.vendor.reset_gpu(gpu)

    assert [call.result for call in bed.node.calls(RESET)] == [0]


async def test_a_persistence_daemon_that_does_not_let_go_is_named(make_bed, tmp_path):
    bed = make_bed(proc_root=tmp_path)
    gpu = await bed.gpu()
    process = tmp_path / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "7").symlink_to(bed.node.dev_root / "nvidia0")
    (process / "comm").write_text("nvidia-persiste\n")

    with bed.held(), pytest.raises(VendorError, match=r"it is open in pid 4711 \(nvidia-persiste\)"):
        await bed.vendor.reset_gpu(gpu)


async def test_a_user_that_cannot_be_seen_is_refused_in_the_words_of_nvidia_smi(lonely):
    gpu = await lonely.gpu()

    with lonely.held(), pytest.raises(VendorError, match="being used by one or more other processes") as refused:
        await lonely.vendor.reset_gpu(gpu)

    assert refused.value.kind is FailureKind.IN_USE


async def test_after_a_failed_reset_nvml_is_open_to_everybody_again(lonely):
    gpu = await lonely.gpu()
    with lonely.held(), suppress(VendorError):
        await lonely.vendor.reset_gpu(gpu)

    assert len((await asyncio.wait_for(lonely.vendor.scan(), PATIENCE)).gpus) == 2


async def test_a_gpu_that_does_not_come_back_is_told_as_lost(lonely):
    first, second = (await lonely.vendor.scan()).gpus
    lonely.node.inject("nvmlDeviceGetUUID", gpu=1, code=15)

    with pytest.raises(VendorError, match="NVML does not see it afterwards") as lost:
        await lonely.vendor.reset_gpu(second)

    assert lost.value.kind is FailureKind.LOST
    await lonely.vendor.reset_gpu(first)
