"""GPUs that come, go and are reset, as sysfs and NVML show it."""

import subprocess
import sys

import pytest

from dra_gpu_sim.cli import main
from tests.component.sim.conftest import code

ENERGY, REMAPPED_PENDING, REMAPPED_FAILURE = 83, 144, 145


def binding(node, gpu=0):
    """The inode number of the link that the driver has of a GPU; None when it has not bound it."""
    link = node.sysfs_root / "bus/pci/drivers/nvidia" / node.gpus[gpu].pci
    return link.lstat().st_ino if link.is_symlink() else None


def again(nvml):
    """Initialise anew and return how many GPUs there are."""
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetCount()


def fields(nvml, *ids):
    values = nvml.nvmlDeviceGetFieldValues(nvml.nvmlDeviceGetHandleByIndex(0), list(ids))
    return [one.value.ullVal if one.fieldId == ENERGY else one.value.uiVal for one in values]


def test_a_gpu_that_is_unbound_is_gone_after_the_next_initialisation_and_stays_on_the_bus(node, nvml):
    node.unbind_gpu(0)
    assert code(lambda: nvml.nvmlDeviceGetHandleByIndex(0)) == nvml.NVML_ERROR_GPU_IS_LOST
    assert again(nvml) == 1
    assert binding(node) is None
    assert (node.sysfs_root / "bus/pci/devices" / node.gpus[0].pci).exists()


def test_every_binding_has_an_inode_number_of_its_own(node):
    seen = [binding(node)]
    for _ in range(20):
        node.unbind_gpu(0)
        node.bind_gpu(0)
        seen.append(binding(node))
    assert len(set(seen)) == len(seen)


def test_a_gpu_in_another_slot_has_its_uuid_and_another_address(node, nvml):
    before = node.gpus[0]
    node.bind_gpu(0, "0000:77:00.0")
    assert again(nvml) == 2
    assert (node.gpus[0].uuid, node.gpus[0].pci) == (before.uuid, "0000:77:00.0")
    found = nvml.nvmlDeviceGetHandleByPciBusId("0000:77:00.0")
    assert nvml.nvmlDeviceGetUUID(found) == before.uuid
    assert binding(node) is not None
    assert not (node.sysfs_root / "bus/pci/devices" / before.pci).is_symlink()


def test_a_slot_that_is_taken_is_refused(node):
    with pytest.raises(ValueError, match="free address"):
        node.bind_gpu(0, node.gpus[1].pci)


def test_a_gpu_that_is_bound_anew_has_forgotten_its_instances_and_modes(node, nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(handle, 1)
    nvml.nvmlDeviceCreateGpuInstance(handle, 19)
    node.set_recovery_action(0, 1)
    node.bind_gpu(0)
    assert (node.gpus[0].mig_current, node.gpus[0].instances, node.gpus[0].recovery_action) == (False, (), 0)
    assert not list(node.proc_root.glob("driver/nvidia/capabilities/gpu0/mig/gi*"))


def test_the_module_is_not_unloaded_while_nvml_is_open(node, nvml):
    module = node.sysfs_root / "module/nvidia"
    before = module.stat().st_ino
    with pytest.raises(RuntimeError, match="in use by"):
        node.reload_driver()
    nvml.nvmlShutdown()
    node.reload_driver()
    nvml.nvmlInit()
    assert module.stat().st_ino != before
    assert nvml.nvmlDeviceGetCount() == 2


def test_energy_is_counted_on_and_starts_anew_with_a_reset(node, nvml):
    (before,) = fields(nvml, ENERGY)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByIndex(0)) >= before > 10**9
    nvml.nvmlShutdown()
    subprocess.run([node.nvidia_smi, "--gpu-reset", "-i", "0"], env=node.environment(), check=True, capture_output=True)
    nvml.nvmlInit()
    (after,) = fields(nvml, ENERGY)
    assert after < before


def test_rows_to_be_replaced_are_after_a_reset_and_none_left_stays_so(node, nvml):
    node.set_remapping(0, pending=True, failure=True)
    assert fields(nvml, REMAPPED_PENDING, REMAPPED_FAILURE) == [1, 1]
    nvml.nvmlShutdown()
    subprocess.run([node.nvidia_smi, "--gpu-reset", "-i", "0"], env=node.environment(), check=True, capture_output=True)
    nvml.nvmlInit()
    assert fields(nvml, REMAPPED_PENDING, REMAPPED_FAILURE) == [0, 1]


def test_a_process_on_a_gpu_that_is_bound_anew_has_nothing_left(node):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        node.add_process(holder.pid, 0, memory=1 << 30)
        node.bind_gpu(0)
        assert node.snapshot().processes == ()
        holder.kill()


@pytest.mark.parametrize(
    ("words", "truth"),
    [
        (["--lost", "--xid", "79"], lambda node: node.gpus[0].lost),
        (["--unbound"], lambda node: not node.gpus[0].present),
        (["--bound"], lambda node: node.gpus[0].present),
        (["--at", "0000:77:00.0"], lambda node: node.gpus[0].pci == "0000:77:00.0"),
    ],
)
def test_the_command_line_does_it(node, words, truth):
    assert main(["inject", str(node.root), "--gpu", "0", *words]) == 0
    assert truth(node)


def test_the_last_word_of_a_gpu_that_falls_off_the_bus_is_heard(node, nvml):
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventTypeXidCriticalError, events)
    node.lose_gpu(0, xid=79)
    assert nvml.nvmlEventSetWait_v2(events, 1000).eventData == 79
    assert code(lambda: nvml.nvmlEventSetWait_v2(events, 1000)) == nvml.NVML_ERROR_GPU_IS_LOST
    nvml.nvmlEventSetFree(events)
