import json

from dra_gpu.api import resource_v1 as api
from dra_gpu.cli import listing
from dra_gpu.inventory import naming, slices, views
from dra_gpu.inventory.model import Scan
from tests.unit.inventory.builders import gpu


def published(*gpus, node="node-a"):
    layout = views.build(Scan(gpus=gpus), naming.assign({}, gpus))
    return [
        api.ResourceSlice(
            spec=api.ResourceSliceSpec(
                driver=listing.DRIVER,
                pool=api.ResourcePool(name=node),
                node_name=node,
                devices=list(content.devices),
                shared_counters=list(content.counter_sets),
            )
        )
        for content in slices.arrange(layout)
    ]


def claim(name, device, *, pool="node-a", driver=listing.DRIVER, admin=None):
    result = api.DeviceRequestAllocationResult(request="r", driver=driver, pool=pool, device=device, admin_access=admin)
    return api.ResourceClaim(
        metadata=api.ObjectMeta(name=name, namespace="team"),
        status=api.ResourceClaimStatus(
            allocation=api.AllocationResult(devices=api.DeviceAllocationResult(results=[result]))
        ),
    )


def test_each_gpu_is_one_row_with_its_views():
    [first, second] = listing.combine(published(gpu(0), gpu(1)), [])

    assert (first.name, first.views) == ("gpu-0", {"gpu": "gpu-0", "monitor": "gpu-0-monitor"})
    assert second.name == "gpu-1"


def test_holders_of_any_view_stand_beside_their_gpu():
    claims = [claim("train", "gpu-0"), claim("watch", "gpu-0-monitor", admin=True), claim("nic", "gpu-0", driver="x")]

    [first] = listing.combine(published(gpu(0)), claims)

    assert first.holders == ("team/train", "team/watch (admin)")


def test_gpu_10_stands_after_gpu_9():
    names = [one.name for one in listing.combine(published(gpu(9), gpu(10), gpu(1)), [])]

    assert names == ["gpu-1", "gpu-9", "gpu-10"]


def test_the_table_has_a_column_as_wide_as_its_widest_cell():
    lines = listing.as_table(listing.combine(published(gpu(0)), [claim("train", "gpu-0")])).splitlines()

    assert lines[0].index("HELD BY") == lines[1].index("team/train")


def test_an_empty_cluster_says_what_to_look_at():
    assert "node plugin" in listing.as_table([])


def test_machines_get_the_same_as_json():
    document = json.loads(listing.as_json(listing.combine(published(gpu(0)), [])))

    assert document["gpus"][0]["memory"] == "80Gi"
