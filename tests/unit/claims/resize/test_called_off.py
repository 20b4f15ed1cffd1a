"""A resize that is not wanted any more before it is done, or whose object is gone."""

from tests.unit.claims.resize.resized import amounts, told

GIVEN_BACK = amounts(90, 60) - amounts(20, 16)


async def test_a_shrink_that_waits_for_its_workload_can_be_called_off(node, training):
    node.attach(1, 4711)
    node.use(1, 40)
    training.want(20, 16)
    assert (await training.visit()).waiting
    assert (node.mps_of(1), node.memory_of(1)) == (90, 16)

    training.want(90, 60)
    await training.visit()

    assert training.said.in_force == told(amounts(90, 60))
    assert (node.mps_of(1), node.memory_of(1)) == (90, 60)


async def test_a_limit_that_no_object_asks_for_any_more_returns_to_what_was_allocated(node, training):
    training.want(20, 16)
    await training.visit()
    assert (node.mps_of(1), node.memory_of(1)) == (20, 16)

    training.object = None
    visit = await training.visit()

    assert (node.mps_of(1), node.memory_of(1)) == (90, 60)
    assert visit.after is None


async def test_a_shrink_that_waits_for_its_workload_is_given_up_with_its_object(node, training):
    node.attach(1, 4711)
    node.use(1, 40)
    training.want(20, 16)
    await training.visit()

    training.object = None
    visit = await training.visit()

    assert (node.mps_of(1), node.memory_of(1)) == (90, 60)
    assert visit.after is None


async def test_what_others_have_been_offered_is_not_taken_back_because_an_object_is_gone(node, training):
    await training.give_back(20, 16)

    training.object = None
    await training.visit()

    assert (node.mps_of(1), node.memory_of(1)) == (20, 16)
    assert training.published == GIVEN_BACK
