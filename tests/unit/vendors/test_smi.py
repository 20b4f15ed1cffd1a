import pytest

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.nvidia.smi import Smi


def smi_of(program, **settings):
    return Smi(lambda: program, lambda: program.parent, **settings)


@pytest.fixture
def program(tmp_path):
    def write(script):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return write


async def test_an_interval_becomes_the_number_of_nvidia_smi(program, tmp_path):
    smi = smi_of(program(f'echo "$@" > {tmp_path}/arguments'))

    await smi.set_time_slice("GPU-1", TimeSliceInterval.LONG)

    assert (tmp_path / "arguments").read_text().split() == ["compute-policy", "-i", "GPU-1", "--set-timeslice", "3"]


async def test_the_present_interval_is_read_from_the_table(program):
    smi = smi_of(program("echo '|  GPU  Policy Name  Value |'; echo '|   0  Time-slice   Medium |'"))

    assert await smi.time_slice("GPU-1") is TimeSliceInterval.MEDIUM


async def test_a_table_that_does_not_tell_is_no_error(program):
    assert await smi_of(program("echo nothing")).time_slice("GPU-1") is None


async def test_a_gpu_without_time_slices_is_told_from_a_failure(program):
    with pytest.raises(VendorError, match="timeSlicingConfig") as caught:
        await smi_of(program("echo 'Not Supported'; exit 3")).set_time_slice("GPU-1", TimeSliceInterval.SHORT)

    assert caught.value.kind is FailureKind.UNSUPPORTED


async def test_a_failure_names_the_gpu_and_what_was_printed(program):
    with pytest.raises(VendorError, match=r"GPU GPU-1: .*ended with 4: 'Insufficient Permissions'") as caught:
        await smi_of(program("echo Insufficient Permissions; exit 4")).set_time_slice("GPU-1", TimeSliceInterval.SHORT)

    assert caught.value.kind is FailureKind.TRANSIENT


async def test_a_program_that_hangs_is_ended_at_the_deadline(program):
    with pytest.raises(VendorError) as caught:
        await smi_of(program("exec sleep 60"), timeout=0.05).set_time_slice("GPU-1", TimeSliceInterval.SHORT)

    assert caught.value.kind is FailureKind.UNRESPONSIVE


async def test_a_missing_program_names_its_path(tmp_path):
    with pytest.raises(VendorError, match="driver root"):
        await smi_of(tmp_path / "absent").set_time_slice("GPU-1", TimeSliceInterval.SHORT)
