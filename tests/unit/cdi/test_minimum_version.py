"""The lowest CDI version that covers a specification; the runtimes' own library judges the rule in tests/component."""

import msgspec
import pytest

from dra_gpu.cdi.spec import ContainerEdits, Device, DeviceNode, Mount, Spec, minimum_version

PLAIN = Spec("", "example.com/gpu", (Device("gpu", ContainerEdits(env=("A=1",))),))


def with_edits(edits: ContainerEdits) -> Spec:
    return msgspec.structs.replace(PLAIN, container_edits=edits)


def named(name: str) -> Spec:
    return msgspec.structs.replace(PLAIN, devices=(Device(name, ContainerEdits(env=("A=1",))),))


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (PLAIN, "0.3.0"),
        (with_edits(ContainerEdits(mounts=(Mount("/a", "/a", ("ro",)),))), "0.3.0"),
        (with_edits(ContainerEdits(mounts=(Mount("/a", "/a", type="tmpfs"),))), "0.4.0"),
        (with_edits(ContainerEdits(device_nodes=(DeviceNode("/dev/a"),))), "0.3.0"),
        (with_edits(ContainerEdits(device_nodes=(DeviceNode("/dev/a", host_path="/host/a"),))), "0.5.0"),
        (named("0a1b-gpu-0"), "0.5.0"),
        (named("٣-gpu"), "0.3.0"),
        (msgspec.structs.replace(PLAIN, kind="example.com/gpu.x"), "0.6.0"),
        (with_edits(ContainerEdits(additional_gids=(44,))), "0.7.0"),
    ],
    ids=["plain", "mount", "typed mount", "node", "host path", "digit", "foreign digit", "dotted class", "groups"],
)
def test_each_feature_asks_for_the_version_that_brought_it(spec: Spec, version: str) -> None:
    assert minimum_version(spec) == version


def test_a_feature_of_one_device_counts_like_one_of_all() -> None:
    device = Device("gpu", ContainerEdits(additional_gids=(44,)))

    assert minimum_version(msgspec.structs.replace(PLAIN, devices=(device,))) == "0.7.0"


def test_merged_edits_hold_each_entry_once_and_keep_the_order() -> None:
    first = ContainerEdits(env=("A=1", "B=2"))
    second = ContainerEdits(env=("B=2", "C=3"))

    assert first.merged(second).env == ("A=1", "B=2", "C=3")
