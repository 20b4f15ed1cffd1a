"""A pod whose device another claim still holds: it is told when that comes free, and the kubelet tries again."""

import pytest

from dra_gpu_sim.local.plugin import PluginProcess
from tests.component.node.node_under_fire import PATIENCE


@pytest.fixture
async def controller(make_world, tmp_path):
    """One node with one GPU, and the controller."""
    world = await make_world(gpus=1)
    await world.start(devices=2)
    process = PluginProcess(tmp_path / "controller.log")
    await process.start(["controller", f"--kubeconfig={world.cluster.kubeconfig}", "--pod-name=a"])
    yield world
    await process.kill()


async def test_the_pod_of_a_refused_claim_is_touched_as_soon_as_its_device_is_free(controller):
    world = controller
    pod = world.api.put(
        "pods",
        {"metadata": {"name": "next"}, "spec": {"nodeName": world.cluster.node_name}, "status": {"phase": "Pending"}},
        "default",
    )
    first = world.claim("first", "gpu-0")
    await world.prepared(first)
    second = world.claim("next", "gpu-0", pod_uid=pod["metadata"]["uid"])
    refusal = (await world.prepare(second, within=6))[second.uid].error
    assert "still held by claim default/first" in refusal
    assert not world.api.log.since(verb="patch", resource="pods")
    await world.unprepare(first)

    def touched() -> bool:
        (found,) = world.api.objects("pods")
        return "resource.dra-gpu.dev/prepare-again" in found["metadata"].get("annotations", {})

    await world.api.log.wait_for(lambda _: touched(), PATIENCE)
    (event,) = [one for one in world.api.objects("events") if one["reason"] == "DeviceFree"]
    assert event["involvedObject"]["uid"] == second.uid
    await world.prepared(second)
