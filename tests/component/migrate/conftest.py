"""Nodes on which manifests run."""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from dra_gpu_sim.local.cluster import LocalCluster
from tests.component.migrate.cluster import Node, start_node


@pytest.fixture
async def make_node() -> AsyncIterator[Callable]:
    """Make nodes that end with the test."""
    async with AsyncExitStack() as stack:

        async def make(*flags: str, profile: str = "H100", gpus: int = 1, **options) -> Node:
            return await _made(stack, *flags, profile=profile, gpus=gpus, **options)

        yield make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def four_h100() -> AsyncIterator[Node]:
    """Four H100 with all that is published by default."""
    async with AsyncExitStack() as stack:
        yield await _made(stack, profile="H100", gpus=4)


@pytest_asyncio.fixture(loop_scope="module")
async def node(four_h100: Node) -> AsyncIterator[Node]:
    """The node for one test, after which everything is as it was before."""
    before = four_h100.cluster.node.snapshot()
    yield four_h100
    await four_h100.clean()
    assert four_h100.cluster.node.snapshot() == before
    assert list(four_h100.cluster.paths.cdi.iterdir()) == []


async def _made(
    stack: AsyncExitStack,
    *flags: str,
    profile: str,
    gpus: int,
    before: Callable | None = None,
    driver_version: str | None = None,
) -> Node:
    # Socket paths must be short, so that it is not pytest's own directory.
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dg-")))
    cluster = await stack.enter_async_context(LocalCluster(root, profile, gpus, driver_version=driver_version))
    if before is not None:
        await before(cluster)
    node = await start_node(cluster, *flags)
    stack.callback(node.programs.close)
    return node
