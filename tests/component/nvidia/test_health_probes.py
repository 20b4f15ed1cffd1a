"""Looking at the health of GPUs by NVML and sysfs, on simulated nodes."""

import subprocess

import pytest

from dra_gpu.vendors.health import RecoveryAction
from dra_gpu.vendors.nvidia import probes

UNKNOWN, LOST, RESET_REQUIRED = 999, 15, 16
HEALTHY_MASK = 0b01_10_10_10_10
DEGRADED, UNHEALTHY_ROUTE = HEALTHY_MASK ^ 0b11, HEALTHY_MASK ^ 0b11 << 4
TOO_FEW_LINKS = HEALTHY_MASK ^ 0b0100 << 8


async def probed(bed, index=0):
    """What a look at one GPU finds, as the GPU was when the test began."""
    return (await bed.vendor.probe_health([await known(bed, index)]))[0]


async def known(bed, index=0):
    if not hasattr(bed, "known"):
        bed.known = (await bed.vendor.scan()).gpus
    return bed.known[index]


@pytest.mark.parametrize(
    "profile", ["A100", "H100", "GB200", "L4", "V100", "P-plain2", "P-tegra1", "P-vgpu1", "P-uma1"]
)
async def test_every_board_that_is_well_looks_well(make_bed, profile):
    assert (await probed(make_bed(profile))).good


async def test_a_gpu_that_is_well_says_what_can_be_compared_later(bed):
    probe = await probed(bed)

    assert (probe.recovery_action, probe.problem, probe.fabric_problem) == (RecoveryAction.NONE, "", "")
    assert probe.reset_mark
    assert probe.counter > 0


@pytest.mark.parametrize(
    ("number", "action"),
    [
        (1, RecoveryAction.RESET),
        (2, RecoveryAction.REBOOT),
        (3, RecoveryAction.DRAIN_P2P),
        (4, RecoveryAction.DRAIN_AND_RESET),
        (5, RecoveryAction.RECOVER_IMEX),
        (6, RecoveryAction.RESET),
        (7, RecoveryAction.REBOOT),
    ],
)
async def test_the_recovery_action_is_what_the_driver_says(bed, number, action):
    bed.node.set_recovery_action(0, number)

    probe = await probed(bed)

    assert probe.recovery_action is action
    assert not probe.good


async def test_a_recovery_action_that_nobody_knows_is_a_problem(bed):
    bed.node.set_recovery_action(0, 42)

    assert "recovery action 42" in (await probed(bed)).problem


async def test_rows_for_which_none_is_left_are_a_problem_for_good(bed):
    bed.node.set_remapping(0, failure=True)

    assert "have the board replaced" in (await probed(bed)).problem


async def test_rows_to_be_replaced_are_the_drivers_to_judge_where_it_tells_what_to_do(bed):
    bed.node.set_remapping(0, pending=True)

    assert (await probed(bed)).good


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (DEGRADED, "degraded bandwidth"),
        (UNHEALTHY_ROUTE, "unhealthy routes"),
        (TOO_FEW_LINKS, "incorrect configuration: too few NVLinks"),
    ],
)
async def test_what_is_wrong_with_the_fabric_is_told_in_words(bed, mask, words):
    bed.node.set_fabric_health(0, mask)

    assert (await probed(bed)).fabric_problem == words


async def test_a_gpu_that_has_not_registered_with_its_fabric_is_not_well_unless_it_is_partitioned(make_bed):
    bed = make_bed(settings=["gpu.0.fabric_state=2"])

    assert "has not registered" in (await probed(bed)).fabric_problem

    await bed.partitioned()
    assert (await probed(bed)).fabric_problem == ""


async def test_a_lost_gpu_is_lost_and_the_others_are_well(make_bed):
    bed = make_bed(gpus=3)
    gpus = (await bed.vendor.scan()).gpus
    bed.node.lose_gpu(1)

    found = await bed.vendor.probe_health(gpus)

    assert [probe.lost for probe in found] == [False, True, False]
    assert [probe.good for probe in found] == [True, False, True]


async def test_a_gpu_that_nvml_does_not_list_is_lost_and_one_at_another_index_is_found(make_bed):
    bed = make_bed(gpus=3)
    gpus = (await bed.vendor.scan()).gpus
    bed.node.unbind_gpu(0)

    found = await bed.vendor.probe_health(gpus)

    assert [probe.lost for probe in found] == [True, False, False]


async def test_a_gpu_that_does_not_answer_says_so_and_the_others_are_well(make_bed, monkeypatch):
    monkeypatch.setattr(probes, "_SECONDS", 0.3)
    bed = make_bed(gpus=2)
    gpus = (await bed.vendor.scan()).gpus
    bed.node.inject("nvmlDeviceGetFieldValues", gpu=0, block=True)

    found = await bed.vendor.probe_health(gpus)

    bed.node.clear()
    assert [probe.unresponsive for probe in found] == [True, False]


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex*", "nvmlDeviceGetUUID", "nvmlDeviceGetFieldValues"])
async def test_a_gpu_is_lost_whichever_call_says_so(bed, call):
    gpu = await known(bed)
    bed.node.inject(call, gpu=0, code=LOST)

    [probe] = await bed.vendor.probe_health([gpu])

    assert probe.lost


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex*", "nvmlDeviceGetFieldValues"])
async def test_a_gpu_that_needs_a_reset_to_be_reached_says_so(bed, call):
    gpu = await known(bed)
    bed.node.inject(call, gpu=0, code=RESET_REQUIRED)

    [probe] = await bed.vendor.probe_health([gpu])

    assert (probe.lost, probe.recovery_action) == (False, RecoveryAction.RESET)


async def test_a_driver_that_does_not_answer_loses_no_gpu(bed):
    gpu = await known(bed)
    bed.node.inject("nvmlInit*", code=15)

    [probe] = await bed.vendor.probe_health([gpu])

    assert not probe.lost
    assert "nvmlInit_v2" in probe.problem


@pytest.mark.parametrize("call", ["nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMigMode"])
async def test_what_a_driver_does_not_tell_is_no_problem(bed, call):
    gpu = await known(bed)
    bed.node.inject(call, code=UNKNOWN)

    [probe] = await bed.vendor.probe_health([gpu])

    assert (probe.problem, probe.fabric_problem, probe.lost) == ("", "", False)


async def test_a_reset_is_seen_by_the_counter_alone(bed):
    before = await probed(bed)
    again = await probed(bed)
    command = [bed.node.nvidia_smi, "--gpu-reset", "-i", "0"]
    subprocess.run(command, env=bed.node.environment(), check=True, capture_output=True)

    after = await probed(bed)

    assert not again.reset_since(before.reset_mark, before.counter)
    assert after.reset_since(before.reset_mark, before.counter)
    assert after.reset_mark == before.reset_mark


@pytest.mark.parametrize("change", ["bind_gpu", "reload_driver"])
async def test_a_gpu_that_is_bound_anew_has_another_mark(bed, change):
    before = await probed(bed)
    {"bind_gpu": lambda: bed.node.bind_gpu(0), "reload_driver": bed.node.reload_driver}[change]()

    after = await probed(bed)

    assert before.reset_mark != after.reset_mark
    assert after.reset_since(before.reset_mark, None)


async def test_looking_holds_no_gpu_open_afterwards(bed):
    from dra_gpu_sim import checker

    await probed(bed)

    assert checker.sessions(bed.node.root) == {}
