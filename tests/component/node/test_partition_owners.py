"""What the node plugin does not know at its start must not make its partitions somebody else's."""

from tests.component.node.node_under_fire import records, until
from tests.component.node.partitions import DEVICES, VIEWS, Partitions, small

UNKNOWN = 999


async def test_a_claim_that_ends_while_the_library_does_not_work_after_a_start_takes_its_partition_along_later(
    make_world,
):
    world = await make_world(gpus=1)
    await world.start(VIEWS, devices=DEVICES)
    partitions = Partitions(world)
    pod = await partitions.pod("job", small(0))
    world.node.inject("nvmlInit*", code=UNKNOWN)
    await world.restart(VIEWS, "--reconcile-period=0.5")

    assert (await world.unprepare(pod.claim))[pod.claim.uid] == ""

    assert records(world) == {pod.claim.uid: "unpreparing"}
    world.node.clear()
    await until(lambda: not partitions.left())
