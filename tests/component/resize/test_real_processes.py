"""The same histories on real processes: the shipped plugin, controller and MPS service, real clients of a GPU.

Fewer steps, since each takes its time. `DRA_GPU_RESIZE_REAL_STEPS` asks for more, `DRA_GPU_RESIZE_SEED` for another
seed.
"""

import asyncio
import os
import sys
from typing import ClassVar

import pytest

from tests.component.node.node_under_fire import PATIENCE, until
from tests.component.resize.history import History
from tests.component.resize.real import RealWorld

STEPS = int(os.environ.get("DRA_GPU_RESIZE_REAL_STEPS", "120"))
SEED = int(os.environ.get("DRA_GPU_RESIZE_SEED", "1"))
#: The worst that may come together: leases of a killed controller, a kubelet that tries again, a busy machine.
QUIET = 3 * PATIENCE


class RealHistory(History):
    """Random steps on real processes."""

    WEIGHTS: ClassVar[dict[str, int]] = {
        "new_pod": 14,
        "end_pod": 4,
        "force_delete_pod": 5,
        "attach": 12,
        "allocate": 12,
        "free": 10,
        "leave": 9,
        "resize": 24,
        "delete_resize": 4,
        "kill_plugin": 3,
        "kill_controller": 2,
        "kill_mps_service": 1,
        "break_mps": 1,
        "server_away": 2,
        "lose_answers": 3,
        "late_slices": 2,
        "late_bindings": 3,
        "lose_journal": 1,
        "reboot": 1,
    }
    PAUSES = (0.0, 0.0, 0.0, 0.02, 0.1, 0.3)

    async def end(self) -> None:
        """Let everything go, and assert that nothing is left."""
        world, objects = self.world, self.objects
        world.plane.scheduler.release_slices()
        world.let_bind()
        for program in world.programs():
            program.end()
        await until(lambda: not objects.unsettled(), QUIET)
        objects.delete_all("claimresizes")
        await until(lambda: not objects.unsettled(), QUIET)
        objects.delete_all("resourceclaims")
        objects.delete_all("pods", grace=True)
        await until(lambda: not objects.left() and not world.sharing.left(), QUIET)

    async def kill_plugin(self) -> None:
        await self.world.restart_plugin()

    async def kill_controller(self) -> None:
        await self.world.restart_controller()

    async def kill_mps_service(self) -> None:
        self.world.kill_mps_service()

    async def break_mps(self) -> None:
        self.world.kill_mps_daemon()

    async def server_away(self) -> None:
        self.world.cluster.api.refuse(self.random.choice((0.2, 1.0)))

    async def lose_answers(self) -> None:
        for verb, resource in (("patch", "claimresizes"), ("create", "resourceclaims"), ("update", "resourceslices")):
            if self.random.random() < 0.5:
                self.world.cluster.api.faults.fail(status=503, verb=verb, resource=resource, apply_first=True)

    async def late_slices(self) -> None:
        self.world.plane.scheduler.hold_slices()
        self.world.later(self.random.choice((0.1, 1.0)), self.world.release_slices)

    async def late_bindings(self) -> None:
        self.world.plane.binds = False
        self.world.later(self.random.choice((0.1, 1.0)), self.world.let_bind)

    async def lose_journal(self) -> None:
        await self.world.restart_plugin(lose_journal=True)

    async def reboot(self) -> None:
        await self.world.reboot()


@pytest.mark.timeout(900)
async def test_a_history_on_real_processes_promises_nothing_twice_and_loses_nothing(make_sharing):
    sys.stdout.write(f"seed {SEED}, {STEPS} steps\n")
    sharing = await make_sharing()
    async with RealWorld(sharing, SEED) as world:
        told = RealHistory(world)
        try:
            await told.run(STEPS)
            await told.end()
        except BaseException as error:
            error.add_note("\n".join([f"seed {SEED}; the last steps:", *told.told[-15:], told.objects.described()]))
            raise
        await asyncio.sleep(0)
