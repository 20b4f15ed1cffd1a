"""What an operator sets, or has done before, when a node moves."""

import pytest

from dra_gpu_sim.local.cluster import DRIVER
from dra_gpu_sim.local.kubelet import Claim
from tests.component.migrate.cluster import PATIENCE, listed, smi
from tests.component.migrate.documents import claim, extended, pod, request
from tests.component.node.node_under_fire import until


async def cut_by_hand(cluster) -> None:
    for arguments in (("-i", "0", "-mig", "1"), ("mig", "-i", "0", "-cgi", "9:0,19:4,19:5", "-C")):
        await smi(cluster, *arguments)


@pytest.mark.migration("MIG instances that belong to no claim")
async def test_an_administrators_partition_is_had_by_its_uuid_and_stays(make_node):
    node = await make_node(gpus=2, before=cut_by_hand)
    instances = node.cluster.node.gpus[0].instances
    (uuid,) = [one.compute_instances[0].uuid for one in instances if one.start == 5]

    pods = await node.apply("a-static-partition-by-uuid.yaml", **{"THE-UUID": uuid})

    assert [one for one in await listed(pods["pinned"].containers["work"]) if one.startswith("MIG-")] == [uuid]
    await node.end(pods)
    assert node.cluster.node.gpus[0].instances == instances


@pytest.mark.migration("MIG instances that belong to no claim")
@pytest.mark.migration("MIG strategy single")
async def test_a_gpu_that_the_administrator_has_cut_is_no_whole_gpu(make_node):
    node = await make_node(gpus=2, before=cut_by_hand)

    pods = await node.run([extended("first"), extended("second")])

    (used,) = pods["first"].claims.values()
    assert node.devices(used) == ["gpu-1"]
    assert pods["second"].pending


@pytest.mark.migration("MIG instances that belong to no claim")
async def test_a_gpu_whose_partitions_the_administrator_destroys_is_whole_again(make_node):
    node = await make_node("--rescan-period=0.5", before=cut_by_hand)
    assert "gpu-0" not in node.published()

    for arguments in (("mig", "-dci"), ("mig", "-dgi")):
        await smi(node.cluster, *arguments)

    await node.wait_published("gpu-0")
    assert (await node.run([extended()]))["pod"].runs


@pytest.mark.migration("Time-slicing replicas")
async def test_by_number_so_many_pods_of_the_device_plugin_share_a_gpu_without_limits(make_node):
    node = await make_node("--consumable-shares=4")

    pods = await node.run([extended(f"pod-{number}") for number in range(5)])

    clients = [node.truth(node.program(one.containers["work"])) for one in pods.values() if one.runs]
    assert [(client.gpu, client.sms, client.memory_limit) for client in clients] == [(0, 132, None)] * 4
    assert "capacity 'shares': 1 wanted, 0 free" in pods["pod-4"].pending


@pytest.mark.migration("Time-slicing replicas")
async def test_two_replicas_in_a_container_are_of_two_gpus(make_node):
    node = await make_node("--consumable-shares=4", gpus=2)

    pods = await node.run([extended("pair", amount=2), extended("three", amount=3)])

    assert len(await listed(pods["pair"].containers["work"])) == 2
    assert pods["three"].pending


@pytest.mark.migration("Time-slicing replicas")
async def test_a_gpu_that_is_shared_so_has_no_fractions_and_partitions_meanwhile(make_node):
    node = await make_node("--consumable-shares=4")
    await node.run([extended()])

    pods = await node.run(
        [
            claim(request("shared.gpu.nvidia.com"), name="fraction"),
            claim(request("mig.nvidia.com"), name="partition"),
            *(pod(name, name) for name in ("fraction", "partition")),
        ]
    )

    assert all(one.pending for one in pods.values())


@pytest.mark.parametrize(("mode", "runs"), [("memory", 2), ("number", 2)])
async def test_nvidias_option_means_the_same(make_node, mode, runs):
    node = await make_node(f"--consumable-shares={'memory' if mode == 'memory' else 2}")

    pods = await node.run([*node.document(f"consumable-shares-by-{mode}.yaml"), extended("one-more")])

    assert [one.runs for one in pods.values()] == [True] * runs + [False]
    for one in pods.values():
        for used in one.claims.values():
            (status,) = await node.status(used)
            assert status["data"]["capacities"]["memory"]["mechanism"] == "accounting"


@pytest.mark.migration("Taints of sick GPUs")
async def test_a_pod_that_tolerates_the_taint_of_an_xid_runs_on_a_gpu_that_has_it(make_node):
    node = await make_node()
    # What happens before the driver has asked for events nobody reports.
    await until(lambda: node.cluster.node.calls("nvmlDeviceRegisterEvents"))
    node.cluster.node.xid(0, 48, recovery_action=0)
    await node.cluster.api.log.wait_for(lambda _: node.published()["gpu-0"].get("taints"), PATIENCE)

    await node.apply("v1beta2.yaml")

    assert [taint["key"] for taint in node.published()["gpu-0"]["taints"]] == ["gpu.nvidia.com/xid"]


@pytest.mark.migration("Not there yet")
async def test_the_other_driver_serves_other_nodes_of_the_cluster(make_node):
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    device = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    theirs = {"driver": "gpu.nvidia.com", "nodeName": "node-1", "pool": pool, "devices": [device]}

    async def other_node(cluster) -> None:
        cluster.api.put("resourceslices", {"metadata": {"name": "theirs"}, "spec": theirs})

    node = await make_node(before=other_node)

    assert (await node.run([extended()]))["pod"].runs
    assert [one["spec"] for one in node.cluster.slices() if one["metadata"]["name"] == "theirs"] == [theirs]


async def test_a_claim_that_the_other_driver_had_is_given_back_without_a_trace(make_node):
    node = await make_node()
    before = node.cluster.node.snapshot()
    claim_of_theirs = Claim("default", "theirs", "5f3c8d4e-3f60-4a2b-9d35-0c1d5b3b8a11")

    answer = await node.kubelet.unprepare(claim_of_theirs, driver=DRIVER)

    assert answer == {claim_of_theirs.uid: ""}
    assert node.cluster.node.snapshot() == before
