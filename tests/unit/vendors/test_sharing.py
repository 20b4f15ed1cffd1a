import pytest

from dra_gpu.inventory.model import DriverVersions
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from dra_gpu.vendors.nvidia import sharing
from tests.unit.inventory.builders import gpu

OLD, NEW = DriverVersions("580.65.06"), DriverVersions("615.71.02")


@pytest.mark.parametrize(
    ("driver", "facts", "cgroup_v2", "isolation"),
    [
        (NEW, {}, True, "namespace"),
        (NEW, {}, False, "cooperative"),
        (OLD, {}, True, "cooperative"),
        (DriverVersions(""), {}, True, "cooperative"),
        (NEW, {"compute_capability": (6, 1)}, True, "time-slice"),
        (NEW, {"compute_capability": None}, True, "time-slice"),
        (NEW, {"mig_enabled": True, "mig_live": False}, True, None),
    ],
)
def test_isolation_is_the_weaker_of_what_limits_sms_and_memory(driver, facts, cgroup_v2, isolation):
    one = gpu(0, **facts)

    assert sharing.isolation(one, sharing.ability(one, driver, cgroup_v2=cgroup_v2)) == isolation


def test_namespaces_came_with_driver_615():
    assert sharing.ability(gpu(0), DriverVersions("610.43"), cgroup_v2=True) == SharingAbility(MpsProtocol.CLASSIC)
    assert sharing.ability(gpu(0), NEW, cgroup_v2=True) == SharingAbility(MpsProtocol.NAMESPACE, memory_limits=True)


def test_memory_limits_need_the_unified_cgroup_hierarchy():
    assert not sharing.ability(gpu(0), NEW, cgroup_v2=False).memory_limits


@pytest.mark.parametrize("driver", [OLD, NEW])
def test_what_a_gpu_that_switches_live_can_do_does_not_depend_on_its_present_mode(driver):
    on, off = (gpu(0, mig_live=True, mig_enabled=enabled) for enabled in (True, False))

    able = sharing.ability(on, driver, cgroup_v2=True)

    assert able == sharing.ability(off, driver, cgroup_v2=True)
    assert sharing.isolation(on, able) == sharing.isolation(off, able) is not None


def test_a_gpu_that_stays_partitioned_until_a_reset_has_no_shares_of_its_own():
    assert sharing.ability(gpu(0, mig_enabled=True), NEW, cgroup_v2=True) == SharingAbility(mps=None)


def test_a_partition_is_shared_by_classic_mps_alone_whatever_the_driver():
    assert sharing.ability_of_partition(gpu(0)) == SharingAbility(MpsProtocol.CLASSIC, memory_limits=False)
