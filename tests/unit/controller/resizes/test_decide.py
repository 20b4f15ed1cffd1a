"""What a decision may be founded on: never a watch's word for what is counted, never an old word of the node's."""

from dataclasses import replace

import pytest

from dra_gpu.apiserver.resources import CLAIM_RESIZES
from dra_gpu.controller.resizes import steps
from dra_gpu.controller.resizes.decide import decide
from dra_gpu.controller.resizes.objects import CLAIMS, PODS
from dra_gpu.controller.resizes.starting import Rules
from dra_gpu.controller.resizes.view import View
from dra_gpu.inventory import amounts
from tests.unit.controller.resizes.cluster import GIBI
from tests.unit.controller.resizes.test_resizer import ALLOCATED, Scene

RULES = Rules(frozenset({"gpu.nvidia.com"}), beyond=True)
LABEL = "resource.dra-gpu.dev/claim-resize"


def view_of(scene, **more):
    claims = scene.cluster.typed(CLAIMS)
    (resize,) = scene.cluster.typed(CLAIM_RESIZES)
    claim = next(one for one in claims if one.metadata.name == "training")
    growths = tuple(one for one in claims if LABEL in one.metadata.labels)
    pods = tuple(one for one in scene.cluster.typed(PODS) if LABEL in one.metadata.labels)
    return View(resize, claim, growths, pods, **more)


@pytest.fixture
def entered():
    """A growth that is allocated and entered, by a controller that died before it counted it."""
    scene = Scene({"memory": "70Gi"})
    scene.controller()
    scene.on_the_node()
    scene.controller()
    scene.cluster.schedule()
    (name,) = scene.cluster.growths()
    claim = scene.cluster.objects["resourceclaims", name]
    entry = {"apiGroup": "resource.dra-gpu.dev", "resource": "claimresizes", "name": "training"}
    claim["status"]["reservedFor"].append(entry | {"uid": scene.resize["metadata"]["uid"]})
    return scene


def test_a_growth_is_counted_only_as_the_server_has_it(entered):
    view = view_of(entered)
    (growth,) = view.growths

    assert decide(view, RULES) == steps.Refresh(growth.metadata.name, growth.metadata.uid)

    write = decide(replace(view, fresh=frozenset({growth.metadata.uid})), RULES)
    assert isinstance(write, steps.Write)
    assert [(one.uid, one.releasing) for one in write.status.growths] == [(growth.metadata.uid, False)]
    assert write.status.permit == view.resize.status.permit + 1
    (result,) = growth.status.allocation.devices.results
    assert amounts.parse(write.status.permitted) - ALLOCATED == amounts.parse(result.consumed_capacity)


def test_a_growth_that_nobody_wants_any_more_is_let_go_without_ever_being_counted(entered):
    entered.cluster.wish("training", {})
    view = view_of(entered)
    (growth,) = view.growths

    write = decide(replace(view, fresh=frozenset({growth.metadata.uid})), RULES)

    assert [one.releasing for one in write.status.growths] == [True]
    assert write.status.permit == view.resize.status.permit


def test_a_growth_whose_claim_seems_gone_is_looked_for_before_it_counts_no_more():
    scene = Scene({"memory": "70Gi"})
    scene.settle()
    view = replace(view_of(scene), growths=())
    (counted,) = view.ledger

    assert decide(view, RULES) == steps.Refresh(counted.claim, counted.uid)
    write = decide(replace(view, fresh=frozenset({counted.uid})), RULES)
    assert write.status.growths == []
    assert amounts.parse(write.status.permitted) == ALLOCATED


def test_a_growth_is_freed_only_when_the_node_keeps_to_what_is_permitted_without_it():
    scene = Scene({"memory": "70Gi"})
    scene.settle()
    scene.cluster.wish("training", {})
    for _ in range(6):  # until the growth is marked, and the node has not heard of it
        scene.controller()
        if any(one.get("releasing") for one in scene.status["growths"]):
            break
        scene.on_the_node()
    (growth,) = scene.cluster.growths()
    assert scene.cluster.allocated(growth).memory == 10 * GIBI

    scene.controller()
    assert scene.cluster.allocated(growth).memory == 10 * GIBI

    scene.on_the_node()
    scene.controller()
    assert growth not in scene.cluster.growths() or not scene.cluster.allocated(growth)


def test_the_claims_entry_stays_while_the_node_has_anything_published():
    scene = Scene({"computePercent": 20})
    scene.settle()
    scene.cluster.wish("training", {})
    scene.controller()

    assert scene.users == ["pods", "claimresizes"]
