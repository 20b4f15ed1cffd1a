"""A node with one GPU, and a claim that has most of it."""

import pytest

from dra_gpu.claims.outcome import Prepared
from tests.unit.claims.resize.resized import Controller, ResizedNode


@pytest.fixture
async def node(tmp_path):
    async with ResizedNode(tmp_path).running() as running:
        yield running


@pytest.fixture
async def training(node):
    """A claim of 90 % and 60 GiB, and the object that resizes it."""
    ref = await node.claim(1, 90, 60)
    assert isinstance(await node.prepare(ref), Prepared)
    return Controller(node, ref, 1, 90, 60)
