"""What runtimes refuse is refused before a file of it exists."""

import pytest

from dra_gpu.cdi.spec import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec
from dra_gpu.cdi.validation import EmptyDeviceError, InvalidSpecError, validate

SOMETHING = ContainerEdits(env=("A=1",))


def spec(*devices: Device, kind: str = "k8s.gpu.nvidia.com/claim", edits: ContainerEdits = SOMETHING) -> Spec:
    return Spec("0.3.0", kind, devices or (Device("gpu-0", SOMETHING),), edits)


def test_a_specification_that_runtimes_take_passes() -> None:
    validate(spec(Device("0a-gpu-0", SOMETHING), Device("0a-gpu-1", SOMETHING)))


@pytest.mark.case("C38")
def test_a_device_without_edits_is_refused_by_its_name() -> None:
    with pytest.raises(EmptyDeviceError, match="device gpu-1 has no edits"):
        validate(spec(Device("gpu-0", SOMETHING), Device("gpu-1", ContainerEdits())))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Spec("0.3.0", "k8s.gpu.nvidia.com/claim", ()), "it has no devices"),
        (spec(Device("a", SOMETHING), Device("a", SOMETHING)), "device a stands in it 2 times"),
        (spec(Device("a/b", SOMETHING)), "device name 'a/b'"),
        (spec(kind="claim"), "the kind is not <vendor>/<class>"),
        (spec(edits=ContainerEdits(env=("NOVALUE",))), "environment entry 'NOVALUE' is not NAME=value"),
        (spec(edits=ContainerEdits(device_nodes=(DeviceNode("/dev/a", type="x"),))), "device node '/dev/a'"),
        (spec(edits=ContainerEdits(mounts=(Mount("", "/a"),))), "mount '' on '/a' lacks a path"),
        (spec(edits=ContainerEdits(hooks=(Hook("onStart", "/bin/true"),))), "'onStart' is no OCI hook"),
    ],
)
def test_every_fault_is_named(broken: Spec, message: str) -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        validate(broken)

    assert message in str(refusal.value)


def test_all_faults_of_a_specification_are_named_at_once() -> None:
    with pytest.raises(InvalidSpecError) as refusal:
        validate(spec(Device("a b", SOMETHING), edits=ContainerEdits(env=("X",))))

    assert "'a b'" in str(refusal.value)
    assert "'X'" in str(refusal.value)
