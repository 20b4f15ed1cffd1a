"""What claims use, from the shipped process through the API server to `kubectl gpu top`."""

import asyncio

import pytest

from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import from_kubeconfig
from dra_gpu.cli.top import see
from tests.component.node.sharing import GIB
from tests.component.node.test_metrics import HTTP, scraper

PATIENCE = 60.0


async def seen(world, node="", namespace=""):
    api = HttpKubernetesApi(from_kubeconfig(world.cluster.kubeconfig, None))
    try:
        return await see(api, node, namespace)
    finally:
        api.close()


def plugin_pod(world, port, *, address="127.0.0.1", phase="Running"):
    """The pod of the node plugin, as the chart makes it; its process is one of this machine."""
    labels = {"app.kubernetes.io/component": "node", "resource.dra-gpu.dev/metrics": "true"}
    container = {"name": "gpus", "args": [], "ports": [{"name": "metrics", "containerPort": port}]}
    return {
        "metadata": {"name": "plugin", "labels": labels},
        "spec": {"nodeName": world.cluster.node_name, "containers": [container]},
        "status": {"phase": phase, "podIP": address},
    }


@pytest.fixture
async def node(make_world, tmp_path):
    made = await make_world(gpus=1)
    await made.start(HTTP, f"--proc-root={tmp_path}", devices=2)
    return made


async def test_what_a_claim_uses_is_told_by_its_node(node):
    claim = node.claim("job", "gpu-0")
    await node.prepared(claim)
    node.api.put("pods", plugin_pod(node, (await scraper(node)).port), "dra-gpu")

    async with asyncio.timeout(PATIENCE):
        [gpu], problems = await seen(node, namespace="dra-gpu")

    assert problems == ()
    assert gpu.memory_used is not None
    [use] = gpu.claims
    assert (use.claim, use.memory_used, use.memory_limit // GIB) == ("default/job", 0, 79)


async def test_a_node_without_a_plugin_that_tells_keeps_its_line(node):
    [gpu], [problem] = await seen(node)

    assert node.cluster.node_name in problem
    assert gpu.name == "gpu-0"


async def test_a_plugin_that_does_not_answer_costs_its_own_figures(node):
    node.api.put("pods", plugin_pod(node, 1), "dra-gpu")

    [gpu], [problem] = await seen(node)

    assert node.cluster.node_name in problem
    assert gpu.memory_used is None
