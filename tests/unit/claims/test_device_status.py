"""A claim's status tells what enforces each capacity of each of its devices."""

import msgspec
import pytest

from dra_gpu.api import quantity
from dra_gpu.api.claim_status_v1 import MAX_DATA_BYTES
from dra_gpu.claims.device_status import effective_multiprocessors, statuses
from dra_gpu.inventory.model import MigPlacement
from dra_gpu.inventory.sharing import MpsProtocol, SharingAbility
from tests.unit.claims.world import (
    DRIVER,
    EVERY_VIEW,
    LONG,
    POOL,
    Node,
    config,
    inventory_of,
    mig_uuid,
    partitionable_gpus,
    ref,
    result,
    share,
    share_id,
    shared_config,
)

MPS = {"defaultActiveThreadPercentage": 25, "defaultPinnedDeviceMemoryLimit": "10Gi"}


@pytest.fixture
async def node(tmp_path):
    async with Node(tmp_path).running() as node:
        node.vendor.cgroups["pod"] = "/kubepods/pod"
        yield node


async def said(node: Node, *devices, configs=()):
    """Prepare a claim with these devices; returns what its status says."""
    claim = node.api.add(ref(), *devices, configs=configs, pods=["pod"])
    await node.prepare(claim)
    record = await node.journal.load(claim.uid)
    gpus = {device.gpu.uuid: device.gpu for device in node.inventory.devices.values()}
    return statuses(record, DRIVER, gpus.get, node.machine.known_instance)


def data(status):
    return msgspec.json.decode(status.data)


def conditions(status):
    return {one.type: (one.status, one.reason) for one in status.conditions}


async def test_a_share_tells_its_limits_what_enforces_them_and_what_a_container_can_lift(node):
    allocated = share("gpu-0-shared", 7)
    allocated.consumed_capacity["nvlinkBandwidth"] = "100G"
    [status] = await said(node, allocated)
    assert (status.driver, status.pool, status.device, status.share_id) == (DRIVER, POOL, "gpu-0-shared", share_id(7))
    found = data(status)
    assert (found["gpu"], found["view"], found["strategy"]) == (node.uuid("gpu-0"), "shared", "MPS")
    assert found["capacities"] == {
        "computePercent": {
            "requested": "20",
            "effective": "20",
            "mechanism": "namespace",
            "scope": "process",
            "lifted": False,
        },
        "memory": {"requested": "10Gi", "effective": "10Gi", "mechanism": "cgroup", "scope": "pod", "lifted": False},
        "clients": {"requested": "1", "mechanism": "accounting", "lifted": True},
        "nvlinkBandwidth": {"requested": "100000000000", "mechanism": "accounting", "lifted": True},
    }
    assert found["multiprocessors"] == 26
    assert any("fatal GPU fault" in note for note in found["notes"])
    assert conditions(status) == {"Ready": ("True", "Prepared"), "Enforced": ("True", "LimitsBind")}


async def test_limits_that_a_container_can_lift_are_called_so(node):
    node.vendor.ability = SharingAbility(MpsProtocol.CLASSIC)
    node.mps.protocol = MpsProtocol.CLASSIC
    [status] = await said(node, share("gpu-0-shared", 7))
    assert conditions(status)["Enforced"] == ("False", "Cooperative")
    memory = data(status)["capacities"]["memory"]
    assert (memory["mechanism"], memory["scope"], memory["lifted"]) == ("cooperative", "process", True)


async def test_time_slices_are_not_called_a_limit(node):
    node.vendor.ability = SharingAbility(None)
    [status] = await said(node, share("gpu-0-shared", 7), configs=[shared_config(strategy="TimeSlicing")])
    assert conditions(status)["Enforced"] == ("False", "NotLimited")
    found = data(status)
    assert found["strategy"] == "TimeSlicing"
    assert "effective" not in found["capacities"]["computePercent"]
    assert found["multiprocessors"] == 132


async def test_a_whole_gpu_is_kept_apart_by_the_hardware(node):
    [status] = await said(node, "gpu-1")
    assert status.share_id is None
    assert data(status)["capacities"] == {
        "memory": {"requested": "80Gi", "effective": "80Gi", "mechanism": "hardware", "scope": "gpu", "lifted": False}
    }
    assert conditions(status)["Enforced"] == ("True", "LimitsBind")


async def test_a_whole_gpu_with_time_slices_says_that_nothing_limits_its_containers(node):
    [status] = await said(node, "gpu-0", configs=[config(**LONG)])
    found = data(status)
    assert found["strategy"] == "TimeSlicing"
    assert found["capacities"]["computePercent"]["mechanism"] == "time-slice"
    assert found["capacities"]["memory"]["mechanism"] == "hardware"
    assert "time slice Long" in found["notes"][0]
    assert conditions(status)["Enforced"] == ("False", "NotLimited")


async def test_a_whole_gpu_on_mps_tells_the_limits_within_its_claim(node):
    [status] = await said(node, "gpu-1", configs=[config(sharing={"strategy": "MPS", "mpsConfig": MPS})])
    found = data(status)
    assert found["multiprocessors"] == 32
    assert found["capacities"]["computePercent"]["mechanism"] == "namespace"
    assert found["capacities"]["memory"]["mechanism"] == "cooperative"


async def test_a_watched_gpu_has_nothing_to_limit(node):
    [status] = await said(node, result("gpu-1-monitor", admin=True))
    assert data(status) == {"gpu": node.uuid("gpu-1"), "view": "monitor", "admin": True}


async def test_each_device_of_a_claim_has_a_status_of_its_own(node):
    found = await said(node, result("gpu-0", "a"), result("gpu-1", "b"))
    assert [status.device for status in found] == ["gpu-0", "gpu-1"]


async def test_no_status_is_longer_than_the_api_server_takes(node):
    claim = node.api.add(ref(), share("gpu-0-shared", 7))
    await node.prepare(claim)
    record = await node.journal.load(claim.uid)
    [held] = record.shares
    long = msgspec.structs.replace(held, notes=("x" * 2 * MAX_DATA_BYTES,))
    [status] = statuses(type(record)(**{**_fields(record), "shares": (long,)}), DRIVER, lambda _uuid: None)
    assert len(bytes(status.data)) <= MAX_DATA_BYTES


def _fields(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


@pytest.mark.parametrize(("percent", "sms"), [(10, 18), (25, 46), (50, 94), (75, 140), (100, 188), (1, 2)])
def test_a_percentage_is_rounded_down_to_whole_pairs_of_sms(percent, sms):
    assert effective_multiprocessors(188, percent) == sms


SMALL = "gpu-0-mig-1g10gb-19-2"


@pytest.fixture
def partitioned(node):
    node.inventory = inventory_of(partitionable_gpus(), options=EVERY_VIEW)
    return node


async def test_a_partition_is_limited_by_hardware_and_named_by_its_uuid_and_profile(partitioned):
    [status] = await said(partitioned, SMALL)
    found = data(status)
    placement = MigPlacement(0, 2, 1)
    uuid = partitioned.uuid(SMALL)
    assert (found["gpu"], found["view"]) == (uuid, "mig")
    assert (found["mig"], found["profile"]) == (mig_uuid(uuid, placement), "1g.10gb")
    profile = partitionable_gpus()[0].mig_profile(placement)
    size = quantity.format_bytes(profile.memory_bytes)
    assert found["capacities"] == {
        "memory": {"requested": size, "effective": size, "mechanism": "hardware", "scope": "partition", "lifted": False}
    }
    assert found["multiprocessors"] == profile.multiprocessors
    assert conditions(status)["Enforced"] == ("True", "LimitsBind")


async def test_a_share_of_a_partition_says_that_a_container_can_lift_its_limits(partitioned):
    [status] = await said(partitioned, share(f"{SMALL}-shared", 7, percent=50, memory="2Gi"))
    found = data(status)
    assert (found["view"], found["strategy"], found["profile"]) == ("shared-mig", "MPS", "1g.10gb")
    assert {one["mechanism"] for one in found["capacities"].values()} == {"cooperative", "accounting"}
    assert found["multiprocessors"] == 8
    assert conditions(status)["Enforced"] == ("False", "Cooperative")
    assert any("shares of this partition" in note for note in found["notes"])


async def test_a_partition_within_its_claim_says_what_mps_limits_and_what_the_hardware(partitioned):
    mps = config("MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}})
    [status] = await said(partitioned, SMALL, configs=[mps])
    capacities = data(status)["capacities"]
    assert (capacities["memory"]["mechanism"], capacities["computePercent"]["mechanism"]) == ("hardware", "cooperative")
