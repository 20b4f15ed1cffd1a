"""The node plugin dies between any two effects of a resize; the next one goes on, and nothing is promised twice."""

import itertools
from dataclasses import dataclass

import pytest

from dra_gpu.inventory.amounts import NOTHING
from tests.unit.claims.resize.resized import Controller, ResizedNode, amounts

GIVEN_BACK = amounts(90, 60) - amounts(20, 16)
EFFECTS = ("keep_resize", "raise_limit", "drop_resize", "resize_share", "set_memory_limit", "offer")


class DiedError(Exception):
    """The process has ended here."""


@dataclass
class Death:
    """The process dies at a number of effects from now, before or after it."""

    effects: int
    after: bool

    def of(self, target, name: str) -> None:
        """Let one method of an object be an effect."""
        effect = getattr(target, name)

        def counted(*values, **named):
            self.effects -= 1
            if self.effects == -1 and not self.after:
                raise DiedError
            return effect(*values, **named)

        async def waited(*values, **named):
            found = await counted(*values, **named)
            if self.effects == -1:
                raise DiedError
            return found

        def done(*values, **named):
            found = counted(*values, **named)
            if self.effects == -1:
                raise DiedError
            return found

        setattr(target, name, done if name == "offer" else waited)


async def shrink(controller) -> None:
    controller.want(20, 16)
    await controller.visit()
    controller.reserve()
    await controller.visit()
    controller.node.server.publish()
    await controller.visit()


async def grow_back(controller) -> None:
    controller.want(90, 60)
    controller.permit(160, 104)
    await controller.visit()
    controller.permit(90, 60)
    await controller.visit()
    controller.node.server.publish()
    await controller.visit()


def check(controller) -> None:
    """What must hold at every moment: L in force + B at the server ≤ A + growths, by what the machine really has."""
    node = controller.node
    real = amounts(node.mps_of(1), node.memory_of(1))
    assert (real + controller.published).within(amounts(160, 104))
    assert controller.published == NOTHING or real.within(amounts(90, 60))


async def again(node, ref, controller):
    """Start the plugin on what the dead one left."""
    offered = {one.key: one.offered for one in await node.journal.resizes()}
    node.server.offered = offered
    node.server.publish()
    check(controller)
    await node.reconciler.reconcile()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("work", "expected", "published"),
    [(shrink, (20, 16), GIVEN_BACK), (grow_back, (90, 60), NOTHING)],
    ids=["shrink", "grow back"],
)
async def test_killed_anywhere_it_goes_on_where_it_was(tmp_path, work, expected, published, after):
    for number in itertools.count():
        before = ResizedNode(tmp_path / str(number))
        died = False
        async with before.running() as node:
            ref = await node.claim(1, 90, 60)
            await node.prepare(ref)
            controller = Controller(node, ref, 1, 90, 60)
            if work is grow_back:
                await shrink(controller)
            death = Death(number, after)
            for name in EFFECTS:
                target = next(it for it in (node.journal, node.machine, node.server) if hasattr(it, name))
                death.of(target, name)
            try:
                await work(controller)
            except DiedError:
                died = True
            check(controller)
        if not died:
            assert number > 5
            return
        next_one = ResizedNode(tmp_path / str(number))
        next_one.api, next_one.vendor, next_one.mps = before.api, before.vendor, before.mps
        async with next_one.running() as node:
            controller.node = node
            await again(node, ref, controller)

            await work(controller)

            assert (node.mps_of(1), node.memory_of(1)) == expected
            assert controller.published == published
            check(controller)
