"""A GPU is taken out of service, reset and given back: what `kubectl gpu` asks, through the shipped node plugin."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from dra_gpu.api import cordon
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import from_kubeconfig
from dra_gpu.cli.cordoning import Service, ServiceError, cordon_gpu, drain_gpu, uncordon_gpu
from dra_gpu.cli.gpu_target import NoSuchGpuError
from dra_gpu.cli.reset import reset_gpu
from dra_gpu_sim.local.cluster import DRIVER

PATIENCE = 120.0
RESET = "nvidia-smi --gpu-reset"
NVML_UNKNOWN = 999


@pytest.fixture
async def node(make_world, tmp_path):
    """Two H100-like GPUs; of the machine's processes nobody is seen, since other tests hold their nodes open."""
    made = await make_world(gpus=2)
    await made.start(f"--proc-root={tmp_path}", devices=4)
    return made


@asynccontextmanager
async def service_of(world, gpu="gpu-1"):
    api = HttpKubernetesApi(from_kubeconfig(world.cluster.kubeconfig, None))
    try:
        yield await Service.find(api, world.cluster.node_name, gpu)
    finally:
        api.close()


async def reset(world, gpu="gpu-1", **options):
    async with asyncio.timeout(PATIENCE), service_of(world, gpu) as service:
        chosen = {"force": False, "keep": False, "seconds": 30.0, "tell": lambda _: None} | options
        return await reset_gpu(service, **chosen)


def rules(world):
    return world.api.objects("devicetaintrules")


def resets(world):
    return [(call.gpu, call.result) for call in world.node.calls(RESET)]


async def test_a_cordon_is_written_once_and_taken_back(node):
    async with service_of(node) as service:
        assert (await cordon_gpu(service)).changed
    async with service_of(node) as service:
        assert not (await cordon_gpu(service)).changed

    [rule] = rules(node)
    assert rule["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": node.cluster.node_name, "device": "gpu-1"}
    async with service_of(node) as service:
        assert (await uncordon_gpu(service)).changed
    assert rules(node) == []


async def test_two_who_drain_at_once_make_one_set_of_rules(node):
    async with service_of(node) as first, service_of(node) as second:
        await asyncio.gather(drain_gpu(first), cordon_gpu(second))

    [rule] = rules(node)
    assert rule["spec"]["taint"]["effect"] == "NoExecute"


async def test_a_rule_of_somebody_else_is_not_taken_over(node):
    async with service_of(node) as service:
        await cordon_gpu(service)
    [rule] = rules(node)
    node.api.remove("devicetaintrules", rule["metadata"]["name"])
    node.api.put("devicetaintrules", rule | {"metadata": {"name": rule["metadata"]["name"]}})

    async with service_of(node) as service:
        with pytest.raises(ServiceError, match="not of `kubectl gpu cordon`"):
            await cordon_gpu(service)


async def test_a_free_gpu_is_reset_and_given_back(node):
    result = await reset(node)

    assert resets(node) == [(1, 0)]
    assert node.node.uuids[1] in result.message
    assert rules(node) == []


async def test_a_gpu_stays_drained_on_request(node):
    await reset(node, keep=True)

    [rule] = rules(node)
    assert cordon.RESET_LABEL not in rule["metadata"]["labels"]


async def test_the_node_waits_for_a_claim_that_it_still_has_and_the_asker_for_the_scheduler(node):
    claim = node.claim("job", "gpu-1", pod_uid="pod-1")
    await node.prepared(claim)
    resetting = asyncio.create_task(reset(node))
    await node.api.log.wait_for(lambda _: bool(rules(node)), PATIENCE)

    node.cluster.remove_claim(claim)  # as by a pod that was deleted by force: the kubelet comes later
    await node.api.log.wait_for(
        lambda _: any(cordon.RESET_LABEL in r["metadata"]["labels"] for r in rules(node)), PATIENCE
    )
    await node.unprepare(claim)

    await resetting
    assert resets(node) == [(1, 0)]


async def test_a_gpu_that_its_pod_keeps_is_not_reset_and_the_claim_is_named(node):
    await node.prepared(node.claim("job", "gpu-1", pod_uid="pod-1"))

    with pytest.raises(ServiceError, match="default/job still has it after"):
        await reset(node, seconds=0.1)

    assert resets(node) == []
    assert len(rules(node)) == 1


async def test_a_failure_is_told_in_the_nodes_words_and_the_gpu_stays_drained(node):
    node.node.inject(RESET, gpu=1, code=NVML_UNKNOWN)

    with pytest.raises(ServiceError, match=f"{node.node.uuids[1]}.*--gpu-reset.*It stays drained"):
        await reset(node)

    [rule] = rules(node)
    assert cordon.RESET_LABEL not in rule["metadata"]["labels"]
    node.node.clear()
    await reset(node)
    assert rules(node) == []


async def test_a_gpu_that_nobody_else_is_disturbed_by_is_reset_while_another_is_in_use(node):
    claim = node.claim("job", "gpu-0")
    await node.prepared(claim)

    await reset(node)

    assert (await node.unprepare(claim))[claim.uid] == ""


async def test_while_a_gpu_is_reset_a_claim_of_it_waits_and_others_do_not(node):
    node.node.inject(RESET, gpu=1, block=True)
    resetting = asyncio.create_task(reset(node))
    await node.until_hardware_is_called()

    waiting = asyncio.create_task(node.prepared(node.claim("early", "gpu-1")))
    await node.api.log.wait_for(lambda log: any(read.name == "early" for read in log.since(verb="get")), PATIENCE)
    await node.prepared(node.claim("neighbour", "gpu-0"))
    assert not waiting.done()
    node.node.clear()

    await waiting
    await resetting
    assert resets(node) == [(1, 0)]


async def test_a_request_that_is_still_there_after_a_restart_is_answered_and_not_carried_out_again(node, tmp_path):
    await reset(node, keep=True)
    [rule] = rules(node)
    [event] = [one for one in node.api.objects("events") if one["reason"] == cordon.RESET_DONE]
    request = event["message"].split(":")[0].removeprefix("Request ")
    labels = {cordon.CORDON_LABEL: "true", cordon.RESET_LABEL: request}

    await node.plugin.kill()
    node.api.remove("devicetaintrules", rule["metadata"]["name"])
    node.api.put("devicetaintrules", rule | {"metadata": {"name": "as-before", "labels": labels}})
    node.kubelet.restart()
    await node.start(f"--proc-root={tmp_path}")
    await node.until(lambda: "a reset was asked for" in node.plugin.read_log(), PATIENCE)

    assert resets(node) == [(1, 0)]


async def test_a_node_that_is_not_there_is_answered_with_those_that_are(node):
    api = HttpKubernetesApi(from_kubeconfig(node.cluster.kubeconfig, None))
    with pytest.raises(NoSuchGpuError, match=f"no GPU is published on node 'node-z': .* {node.cluster.node_name}"):
        await Service.find(api, "node-z", "gpu-0")
    api.close()
