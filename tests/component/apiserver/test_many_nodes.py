"""Hundreds of nodes whose plugins restart together, against one API server."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import Connection
from dra_gpu.apiserver.slice_diff import PoolIdentity
from dra_gpu_sim.apiserver.server import ApiServer

from .pool_builders import DRIVER, gpu, pool, publishing, settled

NODES = [f"node-{number:03}" for number in range(300)]


@pytest.fixture(autouse=True)
def open_files() -> Iterator[None]:
    """Both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def restart_all(server: ApiServer) -> None:
    """One publisher for each node, with a client of its own, until all have what they want."""
    async with AsyncExitStack() as stack:
        publishers = []
        for name in NODES:
            api = HttpKubernetesApi(Connection(server.url))
            stack.callback(api.close)
            identity = PoolIdentity(DRIVER, name, name)
            publishers.append(await stack.enter_async_context(publishing(api, pool(gpu(0)), identity=identity)))
        await asyncio.gather(*(settled(publisher) for publisher in publishers))


@pytest.mark.case("C160")
async def test_three_hundred_restarts_write_nothing_and_ask_each_for_its_own(server: ApiServer) -> None:
    for name in NODES:
        server.put("nodes", {"metadata": {"name": name}})
    await restart_all(server)
    mark = server.log.count
    await restart_all(server)

    asked = server.log.since(mark)
    assert server.log.writes_since(mark) == []
    assert {(one.verb, one.resource) for one in asked} <= {
        ("list", "resourceslices"),
        ("watch", "resourceslices"),
        ("get", "nodes"),
    }
    lists = [one for one in asked if one.verb in ("list", "watch")]
    assert all(f"spec.nodeName%3D{node}" in one.query for one, node in zip(_lists(lists), NODES, strict=True))
    assert all("spec.nodeName%3D" in one.query for one in lists)
    assert len([one for one in asked if one.verb == "list"]) == len(NODES)


def _lists(asked: list) -> list:
    return sorted((one for one in asked if one.verb == "list"), key=lambda one: one.query)
