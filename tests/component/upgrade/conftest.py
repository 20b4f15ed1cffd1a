"""Nodes on which claims are held while the driver changes."""

from collections.abc import AsyncIterator

import pytest

from tests.component.node.conftest import make_world as make_world  # noqa: PLC0414 - tests have it from here
from tests.component.upgrade.held import GPUS, HeldNode


@pytest.fixture
async def held(make_world) -> AsyncIterator[HeldNode]:
    """A node with four H100s on which nothing runs yet."""
    node = HeldNode(await make_world(gpus=GPUS))
    yield node
    await node.kill_all()
    node.close()
