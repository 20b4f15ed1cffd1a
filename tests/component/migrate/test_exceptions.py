"""What does not work here as with NVIDIA's driver or its device plugin, and the way out that the page names."""

import pytest

from dra_gpu.validation import manifest
from tests.component.migrate.cluster import listed
from tests.component.migrate.documents import claim, config, device_class, extended, mps, pod, request, turns

pytestmark = pytest.mark.asyncio(loop_scope="module")

GIB = 2**30
IS_GPU = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"


def all_gpus(name: str = "all"):
    return claim(request(allocationMode="All"), name=name)


async def refused(node, *documents) -> str:
    """Why the node plugin refuses the only pod of these objects."""
    (made,) = (await node.run(documents)).values()
    assert made.refused
    return made.refused


def found(*documents) -> str:
    """What `kubectl gpu validate` says about these objects."""
    reports = [manifest.check(document) for document in documents]
    return "; ".join(str(problem) for report in reports if report is not None for problem in report.problems)


@pytest.mark.migration("A class of your own that names no type")
async def test_a_class_without_a_type_may_get_what_is_for_watching_and_with_a_type_it_waits(node):
    careless = device_class("careless.example.com", "device.driver == 'gpu.nvidia.com'")
    careful = device_class("careful.example.com", IS_GPU)
    asks = (claim(request("careless.example.com"), name="a"), claim(request("careful.example.com"), name="b"))

    pods = await node.run(
        [careless, careful, *asks, all_gpus(), pod("everything", "all"), pod("careless", "a"), pod("careful", "b")]
    )

    assert pods["everything"].runs
    assert "use the class gpu.nvidia.com" in pods["careless"].refused
    assert "in use by" in pods["careful"].pending


@pytest.mark.migration("A class of your own that names no type")
async def test_a_gpu_is_published_as_more_than_a_whole(node):
    types = {device["attributes"]["type"]["string"] for device in node.published().values()}

    assert types == {"gpu", "shared", "mig", "monitor"}


@pytest.mark.migration("Admin access while others use the GPU")
async def test_a_watcher_by_the_class_of_whole_gpus_waits_for_its_users_and_by_monitor_it_does_not(node):
    await node.run([all_gpus(), pod("user", "all")])

    by_gpu = await node.run(node.document("admin-access.yaml"))
    by_monitor = await node.apply("watching-with-monitor.yaml")

    assert "wanted, 0 free" in by_gpu["watcher"].pending
    assert len(await listed(by_monitor["watcher"].containers["work"])) == 4


@pytest.mark.migration("Admin access while others use the GPU")
async def test_a_watchers_config_changes_nothing(node):
    await node.run([claim(request(adminAccess=True), config=(config(sharing=turns("Long")),)), pod()])

    assert [gpu.time_slice for gpu in node.cluster.node.gpus] == [0] * 4


@pytest.mark.migration("MPS on several GPUs of one claim")
async def test_two_gpus_on_mps_are_refused_and_a_claim_for_each_container_is_not(node):
    together = (claim(request(count=2), config=(config(sharing=mps()),), name="two"), pod("p", "two"))

    assert "make a claim of its own for each" in await refused(node, *together)
    assert "a container follows one MPS daemon only" in found(*together)
    pods = await node.run([claim(config=(config(sharing=mps()),)), pod("a"), pod("b")])
    clients = [node.truth(node.program(one.containers["work"])) for one in pods.values()]
    assert [client.mps for client in clients] == [True, True]


@pytest.mark.migration("A thread percentage of 0")
async def test_a_percentage_of_0_is_refused_and_none_is_no_limit(node):
    zero = (claim(config=(config(sharing=mps(defaultActiveThreadPercentage=0)),), name="zero"), pod("p", "zero"))

    assert "defaultActiveThreadPercentage is 0" in await refused(node, *zero)
    assert "defaultActiveThreadPercentage is 0" in found(*zero)
    pods = await node.run([claim(config=(config(sharing=mps()),)), pod()])
    assert node.truth(node.program(pods["pod"].containers["work"])).sm_percent == 100


@pytest.mark.migration("Settings of the other strategy")
@pytest.mark.parametrize(
    ("device", "entry", "field"),
    [
        ("gpu.nvidia.com", config(sharing={**turns("Long"), "strategy": "MPS"}), "sharing.timeSlicingConfig"),
        ("gpu.nvidia.com", config(sharing={"strategy": "TimeSlicing", "mpsConfig": {}}), "sharing.mpsConfig"),
        (
            "mig.nvidia.com",
            config("MigDeviceConfig", sharing={"strategy": "TimeSlicing", "mpsConfig": {}}),
            "sharing.mpsConfig",
        ),
    ],
)
async def test_what_does_not_belong_to_the_strategy_is_refused(node, device, entry, field):
    documents = (claim(request(device), config=(entry,)), pod())

    assert f"{field} does not belong to strategy" in await refused(node, *documents)
    assert f"{field} does not belong to strategy" in found(*documents)


@pytest.mark.migration("A limit for a partition by its UUID")
async def test_a_partition_is_limited_by_its_index(node):
    def limited(key: str, name: str):
        limits = mps(defaultPerDevicePinnedMemoryLimit={key: "2Gi"})
        return claim(request("mig.nvidia.com"), config=(config("MigDeviceConfig", sharing=limits),), name=name)

    by_uuid = limited("MIG-5f3c8d4e-3f60-4a2b-9d35-0c1d5b3b8a11", "uuid")

    assert "names no device that this config governs: write 0" in await refused(node, by_uuid, pod("a", "uuid"))
    assert "write its index" in found(by_uuid)
    pods = await node.run([limited("0", "index"), pod("b", "index")])
    assert node.truth(node.program(pods["b"].containers["work"])).pinned_limit == 2 * GIB


@pytest.mark.migration("A config for a request with alternatives")
@pytest.mark.parametrize(("named", "length"), [("main", 3), ("main/any", 3), ("main/best", 0)])
async def test_a_config_for_a_request_is_for_each_of_its_alternatives(node, named, length):
    ways = [
        {
            "name": "best",
            "deviceClassName": "gpu.nvidia.com",
            "selectors": [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].productName == 'none'"}}],
        },
        {"name": "any", "deviceClassName": "gpu.nvidia.com"},
    ]

    pods = await node.run(
        [
            claim(
                {"name": "main", "firstAvailable": ways}, config=(config("GpuConfig", named, sharing=turns("Long")),)
            ),
            pod(),
        ]
    )

    assert pods["pod"].runs
    assert max(gpu.time_slice for gpu in node.cluster.node.gpus) == length


@pytest.mark.migration("A config for a request with alternatives")
async def test_an_invalid_config_for_a_request_is_refused_whatever_alternative_came(node):
    ways = [{"name": "any", "deviceClassName": "gpu.nvidia.com"}]
    wrong = config("GpuConfig", "main", sharing=mps(defaultActiveThreadPercentage=101))

    why = await refused(node, claim({"name": "main", "firstAvailable": ways}, config=(wrong,)), pod())

    assert "defaultActiveThreadPercentage is 101" in why


@pytest.mark.migration("Where MPS runs")
async def test_a_container_is_told_where_its_mps_daemon_is(node):
    pods = await node.run([claim(config=(config(sharing=mps()),)), pod(env={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine"})])

    container = pods["pod"].containers["work"].container
    assert container.env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/dra-gpu/mps"
    assert "/run/dra-gpu/mps" in container.mounts.values()
    assert "/tmp/nvidia-mps" not in container.mounts.values()
    assert node.cluster.api.objects("pods") == []


@pytest.mark.migration("Memory slices as capacities")
async def test_memory_slices_are_counters(node):
    partition = next(one for name, one in node.published().items() if "-mig-" in name)

    assert not [name for name in partition["capacity"] if name.lower().startswith("memoryslice")]
    (drawn,) = partition["consumesCounters"]
    assert [name for name in drawn["counters"] if name.startswith("memory-slice-")]


@pytest.mark.migration("Not there yet")
async def test_passthrough_waits_and_its_config_is_refused_for_other_devices(node):
    machine = await node.run(node.document("passthrough.yaml"))
    both = [request(), request(name="other")]
    wrong = (claim(*both, config=(config("VfioDeviceConfig", "gpu"),)), pod())

    assert "device class vfio.gpu.nvidia.com does not exist" in machine["machine"].pending
    assert "is a VfioDeviceConfig, but request 'gpu' got device" in await refused(node, *wrong)
    assert "is VfioDeviceConfig" in found(*wrong)


@pytest.mark.migration("Not there yet")
async def test_a_worker_of_a_compute_domain_waits(node):
    pods = await node.run(node.document("compute-domain.yaml"))

    assert "device class compute-domain-default-channel.nvidia.com does not exist" in pods["worker"].pending


@pytest.mark.migration("The node does not list nvidia.com/gpu")
async def test_the_node_object_is_never_written(node):
    await node.run([extended(), all_gpus(), pod("late", "all")])

    assert node.cluster.api.log.writes_since(resource="nodes") == []
    assert node.cluster.api.objects("nodes")[0]["status"]["allocatable"] == {"cpu": "2"}


@pytest.mark.migration("MIG profiles by name")
async def test_without_a_class_for_the_profile_nobody_makes_a_partition_and_with_one_it_is_made_and_destroyed(node):
    asking = extended(resource="nvidia.com/mig-1g.10gb")
    nothing = await node.run([asking])
    named = device_class(
        "mig-1g.10gb.nvidia.com",
        "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig' && "
        "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'",
        resource="nvidia.com/mig-1g.10gb",
    )

    pods = await node.run([named, asking])

    assert nothing["pod"].pending == "Insufficient nvidia.com/mig-1g.10gb"
    assert [len(gpu.instances) for gpu in node.cluster.node.gpus].count(1) == 1
    await node.end(pods)
    assert [len(gpu.instances) for gpu in node.cluster.node.gpus] == [0] * 4


@pytest.mark.migration("MPS replicas")
@pytest.mark.migration("Time-slicing replicas")
async def test_a_claim_for_a_quarter_has_a_quarter_of_the_sms_and_its_memory(node):
    quarter = {"requests": {"computePercent": "25", "memory": "20Gi"}}

    pods = await node.run([claim(request("shared.gpu.nvidia.com", capacity=quarter)), pod("a"), pod("b")])

    clients = [node.truth(node.program(one.containers["work"])) for one in pods.values()]
    assert [(client.gpu, client.sms, client.memory_limit) for client in clients] == [(0, 32, 20 * GIB)] * 2
    refusing = node.program(pods["a"].containers["work"])
    assert refusing.command("alloc 21G") == "CUDA_ERROR_OUT_OF_MEMORY 2"


@pytest.mark.migration("A resource name for shares")
async def test_a_resource_name_gives_the_least_share(node):
    shares = device_class("shares.example.com", IS_GPU.replace("'gpu'", "'shared'"), resource="nvidia.com/gpu.shared")

    pods = await node.run([shares, extended(resource="nvidia.com/gpu.shared")])

    (used,) = pods["pod"].claims.values()
    (result,) = node.results(used)
    consumed = result["consumedCapacity"]
    assert (consumed["computePercent"], consumed["memory"]) == ("1", "1Gi")


@pytest.mark.migration("NVIDIA_VISIBLE_DEVICES")
async def test_the_variable_is_void_whatever_the_pod_says_and_only_the_claims_gpu_is_seen(node):
    pods = await node.run([claim(), pod(env={"NVIDIA_VISIBLE_DEVICES": "all"})])

    container = pods["pod"].containers["work"]
    assert container.container.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert not [name for name in container.container.env if name.startswith("CUDA")]
    assert len(await listed(container)) == 1


@pytest.mark.migration("GPUs that belong together")
async def test_a_constraint_waits_for_gpus_that_belong_together_and_without_one_neighbours_come_first(node):
    def neighbours(name: str):
        wanted = claim(request(count=2), name=name)
        wanted["spec"]["spec"]["devices"]["constraints"] = [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
        return wanted

    plain = await node.run([claim(request(count=2)), pod()])
    (pair,) = plain["pod"].claims.values()
    assert node.devices(pair) == ["gpu-3", "gpu-2"]
    await node.run([claim(), pod("single")])

    constrained = await node.run([neighbours("together"), pod("pair", "together")])

    assert "cannot allocate all claims" in constrained["pair"].pending
