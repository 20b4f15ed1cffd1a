import pytest

from dra_gpu.vendors.cgroups import PodCgroups, pod_of_process

UID = "0a1b2c3d-0000-1111-2222-333344445555"
UNDERSCORED = UID.replace("-", "_")
PLACES = [
    f"kubepods/pod{UID}",
    f"kubepods/burstable/pod{UID}",
    f"kubepods/besteffort/pod{UID}",
    f"own-root/kubepods/burstable/pod{UID}",
    f"kubepods.slice/kubepods-pod{UNDERSCORED}.slice",
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice",
    f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice",
    f"own.slice/own-kubepods.slice/own-kubepods-burstable.slice/own-kubepods-burstable-pod{UNDERSCORED}.slice",
]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu memory dmem\n")
    return tmp_path


@pytest.mark.parametrize("place", PLACES)
def test_a_pods_cgroup_is_found_where_either_cgroup_driver_puts_it(root, place):
    (root / place).mkdir(parents=True)

    assert PodCgroups(root).of_pod(UID) == str(root / place)


def test_a_pod_without_a_cgroup_has_none(root):
    assert PodCgroups(root).of_pod(UID) is None


def test_on_cgroup_v1_nothing_is_looked_for(tmp_path):
    (tmp_path / PLACES[0]).mkdir(parents=True)

    assert not PodCgroups(tmp_path).available
    assert PodCgroups(tmp_path).of_pod(UID) is None


@pytest.mark.parametrize("uid", ["", "../../etc", "a/b", "a" * 64, "a\0b", "-x"])
def test_what_cannot_be_a_uid_never_becomes_a_path(root, uid):
    assert PodCgroups(root).of_pod(uid) is None


@pytest.mark.parametrize(
    ("line", "pod"),
    [
        (
            "0::/kubepods/besteffort/pod1b9a7d4e-1111-4222-8333-123456789abc/0a1b",
            "1b9a7d4e-1111-4222-8333-123456789abc",
        ),
        (
            "0::/kubepods.slice/kubepods-burstable-pod1b9a7d4e_1111_4222_8333_123456789abc.slice/cri-containerd-0a.scope",
            "1b9a7d4e-1111-4222-8333-123456789abc",
        ),
        ("11:memory:/kubepods/pod0123456789abcdef0123456789abcdef/x\n0::/", "0123456789abcdef0123456789abcdef"),
        ("0::/system.slice/podman.service", None),
        ("0::/user.slice/pod-bay", None),
    ],
)
def test_the_pod_of_a_process_is_read_from_its_cgroup_in_either_spelling(tmp_path, line, pod):
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "cgroup").write_text(f"{line}\n")

    assert pod_of_process(tmp_path, 10) == pod
    assert pod_of_process(tmp_path, 11) is None
