"""What the label of a Node says about the views of its GPUs."""

import pytest

from dra_gpu.inventory.model import View
from dra_gpu.inventory.view_label import narrow

OFFERED = (View.GPU, View.SHARED, View.MIG, View.MONITOR)


def test_without_a_label_everything_is_offered():
    found = narrow(None, OFFERED)

    assert (found.views, found.problem) == (OFFERED, "")


@pytest.mark.parametrize(
    ("text", "views"),
    [
        ("gpu", (View.GPU,)),
        ("monitor.gpu", (View.GPU, View.MONITOR)),
        ("shared.shared", (View.SHARED,)),
        ("gpu.shared.mig.monitor", OFFERED),
    ],
)
def test_a_label_narrows_in_the_operators_order(text, views):
    found = narrow(text, OFFERED)

    assert (found.views, found.problem) == (views, "")


@pytest.mark.parametrize("text", ["", "GPU", "gpu.", "gpu..shared", "gpu_shared", "gpus", "gpu,shared", "x" * 5000])
def test_a_label_that_cannot_be_read_changes_nothing_and_is_told(text):
    found = narrow(text, OFFERED)

    assert found.views is None
    assert found.problem.startswith("label resource.dra-gpu.dev/views=")
    assert "such as gpu.shared" in found.problem
    assert len(found.problem) < 400


def test_a_view_that_the_release_does_not_offer_is_not_added_by_a_label():
    found, nothing = narrow("vfio.gpu", OFFERED), narrow("vfio.shared-mig", OFFERED)

    assert found.views == (View.GPU,)
    assert "vfio is not among the views of this release, and the others are offered" in found.problem
    assert nothing.views == ()
    assert "vfio, shared-mig is not among" in nothing.problem
    assert "nothing is offered on this node" in nothing.problem
