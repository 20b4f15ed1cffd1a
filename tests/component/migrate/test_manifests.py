"""Manifests written for NVIDIA's driver run as they are, down to the programs in their containers."""

import pytest

from tests.component.migrate.cluster import listed

pytestmark = pytest.mark.asyncio(loop_scope="module")

GIB = 2**30
#: As `nvidia-smi compute-policy` counts them.
DEFAULT, SHORT, MEDIUM, LONG = range(4)
SMS = 132


def time_slices(node) -> list[int]:
    return sorted(gpu.time_slice for gpu in node.cluster.node.gpus)


def partitions(node) -> list[list[str]]:
    """The truth about the partitions of each GPU that has some."""
    found = [[one.profile.removeprefix("MIG ") for one in gpu.instances] for gpu in node.cluster.node.gpus]
    return sorted(sorted(one) for one in found if one)


async def test_each_pod_of_a_template_has_a_gpu_of_its_own(node):
    pods = await node.apply("a-gpu-for-each-pod.yaml")

    first, second = [await listed(pod.containers["work"]) for pod in pods.values()]
    assert (len(first), len(second)) == (1, 1)
    assert first != second


async def test_the_containers_of_a_pod_have_one_gpu(node):
    containers = (await node.apply("containers-of-a-pod.yaml"))["pair"].containers

    assert await listed(containers["loader"]) == await listed(containers["trainer"])
    clients = [node.program(one) for one in containers.values()]
    assert [node.truth(client).sms for client in clients] == [SMS, SMS]


async def test_two_pods_use_one_claim(node):
    pods = await node.apply("pods-on-a-claim.yaml")

    left, right = [await listed(pod.containers["work"]) for pod in pods.values()]
    assert left == right
    assert pods["left"].claims == pods["right"].claims


async def test_every_replica_has_a_gpu_of_its_own(node):
    pods = await node.apply("replicas.yaml")

    lists = [await listed(pod.containers["work"]) for pod in pods.values()]
    assert [len(one) for one in lists] == [1, 1, 1, 1]
    assert len({uuid for one in lists for uuid in one}) == 4


async def test_several_gpus_come_by_count_and_by_request_and_where_a_constraint_wants_them(node):
    pods = await node.apply("several-gpus.yaml")

    neighbours = await listed(pods["neighbours"].containers["work"])
    a, b = [await listed(one) for one in pods["one-each"].containers.values()]
    assert len({*neighbours, *a, *b}) == 4
    roots = {
        node.published()[name]["attributes"]["resource.kubernetes.io/pcieRoot"]["string"]
        for claim in pods["neighbours"].claims.values()
        for name in node.devices(claim)
    }
    assert len(roots) == 1


async def test_a_pod_has_all_gpus_of_its_node(node):
    pods = await node.apply("all-gpus.yaml")

    assert len(await listed(pods["alone"].containers["work"])) == 4


@pytest.mark.migration("Node labels")
async def test_selectors_find_every_attribute_and_capacity_of_a_gpu(node):
    pods = await node.apply("selectors.yaml")

    assert len(await listed(pods["choosy"].containers["work"])) == 1


async def test_a_gpu_is_had_by_its_uuid(node):
    uuid = node.cluster.node.uuids[2]

    pods = await node.apply("a-gpu-by-uuid.yaml", **{"THE-UUID": uuid})

    assert await listed(pods["pinned"].containers["work"]) == [uuid]


async def test_a_pod_waits_for_a_gpu_that_is_not_there(node):
    pods = await node.run(node.document("no-such-gpu.yaml"))

    assert "cannot allocate all claims" in pods["dreamer"].pending


async def test_of_one_claim_a_gpu_is_used_in_turns_and_another_at_once_with_limits(node):
    containers = (await node.apply("strategies.yaml"))["mixed"].containers

    clients = {name: node.truth(node.program(one)) for name, one in containers.items()}
    assert {name: (client.mps, client.sms, client.pinned_limit) for name, client in clients.items()} == {
        "turn-a": (False, SMS, None),
        "turn-b": (False, SMS, None),
        "half-a": (True, SMS // 2, 5 * GIB),
        "half-b": (True, SMS // 2, 5 * GIB),
    }
    assert time_slices(node) == [DEFAULT, DEFAULT, DEFAULT, LONG]


async def test_every_length_of_a_time_slice_is_set_and_a_config_without_sharing_changes_nothing(node):
    await node.apply("intervals.yaml")

    assert time_slices(node) == [DEFAULT, DEFAULT, SHORT, MEDIUM]


async def test_a_config_of_the_class_holds_unless_the_claim_says_otherwise(node):
    await node.apply("class-with-a-config.yaml")

    assert time_slices(node) == [DEFAULT, DEFAULT, SHORT, LONG]


async def test_the_first_alternative_that_there_is_comes_with_its_own_config(node):
    pods = await node.apply("alternatives.yaml")

    (claim,) = pods["modest"].claims.values()
    assert [result["request"] for result in node.results(claim)] == ["accelerator/any"]
    assert time_slices(node) == [DEFAULT, DEFAULT, DEFAULT, MEDIUM]


async def test_partitions_of_several_sizes_are_parts_of_one_gpu(node):
    containers = (await node.apply("partitions-of-one-gpu.yaml"))["family"].containers

    assert partitions(node) == [["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]]
    parts = {uuid for one in containers.values() for uuid in await listed(one) if uuid.startswith("MIG-")}
    assert len(parts) == 4
    assert {name: node.truth(node.program(one)).sms for name, one in containers.items()} == {
        "small-a": 16,
        "small-b": 16,
        "middle": 32,
        "large": 60,
    }


async def test_selectors_find_every_attribute_and_capacity_of_a_partition(node):
    await node.apply("partition-selectors.yaml")

    assert partitions(node) == [["2g.20gb"]]


async def test_a_partition_takes_what_its_config_can_say(node):
    containers = (await node.apply("partition-configs.yaml"))["configured"].containers

    clients = {name: node.truth(node.program(one)) for name, one in containers.items()}
    assert {name: (client.mps, client.sms, client.pinned_limit) for name, client in clients.items()} == {
        "plain": (False, 16, None),
        "turns": (False, 16, None),
        "together": (True, 30, 12 * GIB),
    }
    assert {gpu.compute_mode for gpu in node.cluster.node.gpus} == {0}
    assert time_slices(node) == [DEFAULT] * 4


async def test_a_config_that_names_no_request_is_for_the_devices_of_its_kind(node):
    containers = (await node.apply("a-config-for-each-kind.yaml"))["unlike"].containers

    assert time_slices(node) == [DEFAULT, DEFAULT, DEFAULT, LONG]
    clients = {name: node.truth(node.program(one)) for name, one in containers.items()}
    assert {name: (client.mps, client.sms) for name, client in clients.items()} == {
        "whole": (False, SMS),
        "part": (True, 16),
    }


async def test_extended_resources_of_the_device_plugin_need_no_claim(node):
    pods = await node.apply("extended-resources.yaml")

    before = pods["as-before"].containers
    assert [len(await listed(before[name])) for name in ("one", "two")] == [1, 2]
    assert before["none"].devices == ()
    assert len({uuid for one in before.values() if one.devices for uuid in await listed(one)}) == 3
    assert partitions(node) == [["1g.10gb"]]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_older_versions_of_kubernetes_api_mean_the_same(version, node):
    pods = await node.apply(f"{version}.yaml")

    if version == "v1beta1":
        assert partitions(node) == [["3g.40gb", "3g.40gb"]]
        assert time_slices(node) == [DEFAULT, DEFAULT, DEFAULT, SHORT]
    assert [pod.runs for pod in pods.values()] == [True]


async def test_a_watcher_has_all_gpus_that_are_free_and_takes_none_from_anybody(node):
    watchers = await node.apply("admin-access.yaml")

    assert len(await listed(watchers["watcher"].containers["work"])) == 4
    assert len(await node.apply("replicas.yaml")) == 4
