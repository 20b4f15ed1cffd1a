"""Names of the two sockets: the forms Kubernetes' own helper makes, up to what a Unix socket can bear."""

from pathlib import Path

import pytest

from dra_gpu.kubelet.sockets import MAX_PATH_BYTES, SocketPathError, registration_name, socket_paths

REGISTRY = Path("/var/lib/kubelet/plugins_registry")
PLUGINS = Path("/var/lib/kubelet/plugins")
UID = "ad4af911-5bcd-47c5-a554-f35cea869472"


def test_without_a_pod_uid_the_names_are_fixed():
    paths = socket_paths(REGISTRY, PLUGINS, "gpu.nvidia.com")

    assert paths.registration == REGISTRY / "gpu.nvidia.com-reg.sock"
    assert paths.service == PLUGINS / "gpu.nvidia.com/dra.sock"


def test_with_a_pod_uid_both_names_carry_it():
    paths = socket_paths(REGISTRY, PLUGINS, "gpu.nvidia.com", UID)

    assert paths.registration == REGISTRY / f"gpu.nvidia.com-{UID}-reg.sock"
    assert paths.service == PLUGINS / f"gpu.nvidia.com/dra-{UID}.sock"


def test_a_long_driver_name_takes_the_hash_of_the_uid():
    name = registration_name(REGISTRY, "gpu.dra-example-driver.sigs.k8s.io", UID)

    assert name == "gpu.dra-example-driver.sigs.k8s.io-Jk8-oymVURI-reg.sock"


def test_a_very_long_driver_name_takes_the_hash_of_both():
    name = registration_name(REGISTRY, "a" * 100, UID)

    assert name == "dra-0XAjsR3nLFWHa0HL1OOe6g-reg.sock"


def test_a_long_registry_directory_leaves_less_room():
    uid = "11111111-2222-3333-4444-555555555555"
    registry = Path("/var/lib/kubelet") / ("x" * 20) / "plugins_registry"

    assert registration_name(REGISTRY, "driver.example.com", uid) == f"driver.example.com-{uid}-reg.sock"
    assert uid not in registration_name(registry, "driver.example.com", uid)


@pytest.mark.parametrize(("spare", "full"), [(0, True), (-1, False)])
def test_a_path_of_exactly_107_bytes_is_used_and_one_more_takes_the_next_form(spare: int, *, full: bool):
    driver = "d" * 20
    name = f"{driver}-{UID}-reg.sock"
    registry = Path("/" + "r" * (MAX_PATH_BYTES - len(name) - 2 - spare))

    assert (registration_name(registry, driver, UID) == name) is full


def test_every_chosen_registration_path_fits_for_long_names():
    for length in range(1, 120):
        name = registration_name(REGISTRY, "d" * length, UID)
        assert len(bytes(REGISTRY / name)) <= MAX_PATH_BYTES


def test_different_pods_and_different_drivers_never_share_a_name():
    names = {
        registration_name(REGISTRY, driver, uid)
        for driver in ("gpu.nvidia.com", "a" * 100, "b" * 100)
        for uid in (UID, "ffffffff-ffff-ffff-ffff-ffffffffffff")
    }

    assert len(names) == 6


def test_a_service_socket_that_cannot_fit_is_refused_with_the_way_out():
    with pytest.raises(SocketPathError, match=r"may have 107: use a shorter kubelet directory"):
        socket_paths(REGISTRY, Path("/" + "p" * 90), "gpu.nvidia.com")


def test_a_relative_directory_is_refused():
    with pytest.raises(SocketPathError, match="give an absolute one"):
        socket_paths(Path("plugins_registry"), PLUGINS, "gpu.nvidia.com")


@pytest.mark.parametrize(
    ("driver", "uid"), [("../evil", None), (".hidden", None), ("", None), ("ok", "a/b"), ("ok", "")]
)
def test_a_name_that_is_no_file_name_is_refused(driver: str, uid: str | None):
    with pytest.raises(SocketPathError, match="cannot be part of a socket's name"):
        socket_paths(REGISTRY, PLUGINS, driver, uid)
