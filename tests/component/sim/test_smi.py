"""The nvidia-smi stand-in: what it prints, changes and refuses."""

import os
import subprocess
import sys

import pytest

from dra_gpu_sim.node import SimulatedNode


def smi(node: SimulatedNode, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code and output, in an environment that holds nothing but what is given."""
    result = subprocess.run(
        [node.nvidia_smi, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    return result.returncode, result.stdout


@pytest.mark.parametrize("name", ["nvidia_smi", "mps_control", "cuda_client"])
def test_programs_are_static_and_run_in_an_image_without_a_c_library(node, name):
    listed = subprocess.run(["ldd", getattr(node, name)], capture_output=True, check=False)
    assert b"not a dynamic executable" in listed.stderr


def test_gpus_are_listed_with_name_and_uuid(node):
    exit_code, output = smi(node, "-L")
    lines = [f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: {uuid})" for index, uuid in enumerate(node.uuids)]
    assert (exit_code, output.splitlines()) == (0, lines)


def test_a_container_with_one_device_node_lists_that_gpu_alone(node, tmp_path):
    for name in ("nvidiactl", "nvidia1"):
        (tmp_path / name).touch()
    _, output = smi(node, "-L", DRA_GPU_SIM_DEV=str(tmp_path))
    assert output == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {node.uuids[1]})\n"


def test_the_state_may_be_mounted_elsewhere_without_anything_beside_it(node, tmp_path):
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    os.link(node.state_path, mounted / "state")
    _, output = smi(node, "-L", DRA_GPU_SIM_ROOT=str(mounted), DRA_GPU_SIM_DEV=str(node.dev_root))
    assert output.count("GPU ") == 2


def test_queries_print_csv_with_and_without_header_and_units(node):
    fields = "--query-gpu=index,pci.bus_id,memory.total,compute_mode,mig.mode.current"
    assert smi(node, fields, "--format=csv,noheader,nounits", "-i", "1") == (
        0,
        "1, 00000000:29:00.0, 81559, Default, Disabled\n",
    )
    assert smi(node, "--query-gpu=index,memory.total", "--format=csv", "-i", "0") == (
        0,
        "index, memory.total [MiB]\n0, 81559 MiB\n",
    )


def test_an_unknown_field_is_a_bad_argument(node):
    assert smi(node, "--query-gpu=colour", "--format=csv") == (2, 'Field "colour" is not a valid field to query.\n\n')


def test_the_full_report_has_the_sections_that_scripts_read(make_node):
    node = make_node("GB200", gpus=1)
    node.add_process(os.getpid(), 0, memory=3 << 30, name="train")
    _, output = smi(node, "-q")
    pairs = [tuple(part.strip() for part in line.split(" : ", 1)) for line in output.splitlines() if " : " in line]
    for expected in (
        ("Driver Version", "615.71.02"),
        ("CUDA Version", "13.4"),
        ("Attached GPUs", "1"),
        ("Product Name", "NVIDIA GB200"),
        ("Minor Number", "0"),
        ("Current", "Disabled"),
        ("Used", "3072 MiB"),
        ("Compute Mode", "Default"),
        ("State", "Completed"),
        ("Status", "Success"),
        ("CliqueId", "1"),
        ("Process ID", str(os.getpid())),
        ("Name", "train"),
    ):
        assert expected in pairs


@pytest.mark.parametrize("mode", ["3", "EXCLUSIVE_PROCESS"])
def test_the_compute_mode_is_set_by_number_or_name(node, mode):
    assert smi(node, "-i", node.uuids[1], "-c", mode) == (
        0,
        "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:29:00.0.\nAll done.\n",
    )
    assert [gpu.compute_mode for gpu in node.gpus] == [0, 3]
    assert "already set" in smi(node, "-i", "1", "-c", mode)[1]


def test_the_time_slice_is_set_on_the_gpus_named_and_listed(node):
    exit_code, output = smi(node, "compute-policy", "-i", node.uuids[0], "--set-timeslice", "3")
    assert (exit_code, output) == (0, "Successfully set time-slice to LONG for GPU 00000000:1B:00.0\n")
    assert [gpu.time_slice for gpu in node.gpus] == [3, 0]
    listing = smi(node, "compute-policy", "-l")[1]
    assert [line.split()[2:4] for line in listing.splitlines() if "Time-slice" in line] == [
        ["Time-slice", "Long"],
        ["Time-slice", "Default"],
    ]


def test_a_board_without_time_slices_says_so_and_fails(make_node):
    node = make_node("L4", gpus=1, settings=["gpu.0.time_slice_supported=0"])
    exit_code, output = smi(node, "compute-policy", "-i", "0", "--set-timeslice", "1")
    assert exit_code == 3
    assert "Not Supported" in output


@pytest.mark.parametrize("value", ["4", "-1", "short", ""])
def test_a_time_slice_that_does_not_exist_is_a_bad_argument(node, value):
    assert smi(node, "compute-policy", "--set-timeslice", value)[0] == 2


def test_what_nvidia_smi_does_is_in_the_call_log_and_can_be_made_to_fail(node):
    node.inject("nvidia-smi compute-policy", gpu=1, code=999, count=1)
    assert smi(node, "compute-policy", "-i", "1", "--set-timeslice", "1")[0] == 255
    assert smi(node, "compute-policy", "-i", "1", "--set-timeslice", "1")[0] == 0
    calls = [(call.gpu, call.result) for call in node.calls("nvidia-smi compute-policy")]
    assert calls == [(1, 999), (1, 0)]


def test_an_unknown_gpu_is_not_found(node):
    assert smi(node, "-i", "GPU-nothing", "-c", "0") == (6, "No devices were found\n")


def test_a_lost_gpu_is_told_and_fails(node):
    node.lose_gpu(0)
    exit_code, output = smi(node, "-i", "0", "-c", "3")
    assert exit_code == 15
    assert "GPU is lost.  Reboot the system to recover this GPU" in output


def test_without_a_driver_it_cannot_communicate(node, tmp_path):
    exit_code, output = smi(node, "-L", DRA_GPU_SIM_ROOT=str(tmp_path))
    assert exit_code == 9
    assert output.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_a_reset_is_refused_while_another_session_holds_the_gpu_and_clears_what_does_not_survive(node, nvml):
    nvml.nvmlDeviceGetHandleByIndex(0)
    node.set_recovery_action(0, 1)
    smi(node, "compute-policy", "-i", "0", "--set-timeslice", "2")
    exit_code, output = smi(node, "--gpu-reset", "-i", "0")
    assert exit_code == 255
    assert "  GPU 00000000:1B:00.0: In use by another client\n" in output
    nvml.nvmlShutdown()
    assert smi(node, "-r", "-i", "0") == (0, "GPU 00000000:1B:00.0 was successfully reset.\nAll done.\n")
    assert (node.gpus[0].recovery_action, node.gpus[0].time_slice) == (0, 0)
    nvml.nvmlInit()


HOLD_A_GPU = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
assert library.nvmlInit_v2() == 0
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(ctypes.c_void_p())) == 0
print("holding", flush=True)
sys.stdin.read()
"""


def test_a_session_of_a_killed_process_does_not_keep_its_gpu(node):
    command = [sys.executable, "-c", HOLD_A_GPU, node.library]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert smi(node, "-r", "-i", "0")[0] == 255
        holder.kill()
    assert smi(node, "-r", "-i", "0")[0] == 0


@pytest.mark.case("C71")
def test_a_pending_mig_mode_takes_effect_with_the_reset(make_node):
    node = make_node("P-a100", gpus=1)
    exit_code, output = smi(node, "-i", "0", "-mig", "1")
    assert exit_code == 0
    assert "MIG mode is in pending enable state for GPU 00000000:1B:00.0:Reset is required" in output
    assert (node.gpus[0].mig_current, node.gpus[0].mig_pending) == (False, True)
    smi(node, "-r", "-i", "0")
    assert node.gpus[0].mig_current


def test_mig_instances_are_made_listed_and_removed(node):
    assert smi(node, "-i", "0", "-mig", "1") == (0, "Enabled MIG Mode for GPU 00000000:1B:00.0\nAll done.\n")
    assert smi(node, "mig", "-i", "0", "-cgi", "9,MIG 1g.10gb:4", "-C")[1].splitlines() == [
        "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  2 using profile MIG 3g.40gb (ID  2)",
        "Successfully created GPU instance ID  7 on GPU  0 using profile MIG 1g.10gb (ID 19)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  7 using profile MIG 1g.10gb (ID  0)",
    ]
    rows = [line.split()[1:-1] for line in smi(node, "mig", "-lgi")[1].splitlines() if "MIG " in line]
    assert rows == [["0", "MIG", "3g.40gb", "9", "2", "0:4"], ["0", "MIG", "1g.10gb", "19", "7", "4:1"]]
    assert smi(node, "-L")[1].splitlines()[1].startswith("  MIG 3g.40gb      Device  0: (UUID: MIG-")
    assert smi(node, "mig", "-dgi")[0] == 19
    assert smi(node, "mig", "-dci")[0] == 0
    assert smi(node, "mig", "-dgi", "-gi", "7") == (0, "Successfully destroyed GPU instance ID  7 from GPU  0\n")
    assert [instance.id for instance in node.gpus[0].instances] == [2]


def test_when_a_list_of_instances_fails_the_earlier_ones_stay(node):
    smi(node, "-i", "0", "-mig", "1")
    exit_code, output = smi(node, "mig", "-i", "0", "-cgi", "19,9,9")
    assert exit_code == 23
    assert output.endswith("Failed to create GPU instances: Insufficient Resources\n")
    assert [instance.profile for instance in node.gpus[0].instances] == ["3g.40gb", "1g.10gb"]


def test_placements_are_listed_as_a_set(node):
    smi(node, "-i", "0", "-mig", "1")
    lines = smi(node, "mig", "-lgipp")[1].splitlines()
    assert "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1" in lines
    assert "GPU  0 Profile ID  0 Placement : {0}:8" in lines


def test_profiles_are_listed_with_what_is_free(node):
    smi(node, "-i", "0", "-mig", "1")
    smi(node, "mig", "-i", "0", "-cgi", "9")
    rows = {line.split()[3]: line.split()[5] for line in smi(node, "mig", "-lgip")[1].splitlines() if "MIG " in line}
    assert rows == {"1g.10gb": "3/7", "1g.10gb+me": "1/1", "1g.20gb": "2/4", "2g.20gb": "1/3"} | {
        "3g.40gb": "1/2",
        "4g.40gb": "0/1",
        "7g.80gb": "0/1",
    }


def test_without_mig_there_is_nothing_to_list(make_node):
    assert smi(make_node("L4", gpus=1), "mig", "-lgip") == (6, "No MIG-enabled devices found.\n")
