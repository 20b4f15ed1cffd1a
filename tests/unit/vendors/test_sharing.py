import pytest

from dra_gpu.inventory.model import DriverVersions
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
        (NEW, {"mig_enabled": True}, True, None),
    ],
)
def test_isolation_is_the_weaker_of_what_limits_sms_and_memory(driver, facts, cgroup_v2, isolation):
    assert sharing.isolation(gpu(0, **facts), driver, cgroup_v2=cgroup_v2) == isolation


def test_namespaces_came_with_driver_615():
    assert not sharing.has_namespaces(gpu(0), DriverVersions("610.43"))
    assert sharing.has_namespaces(gpu(0), NEW)
