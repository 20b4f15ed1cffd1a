"""The views of a node follow its label; a mistake in it is told once and disturbs nothing."""

from dra_gpu.api.resource_v1 import ObjectMeta
from dra_gpu.apiserver.resources import Node
from dra_gpu.inventory.model import View
from dra_gpu.inventory.view_label import LABEL
from dra_gpu.node.node_views import NodeViews

OFFERED = (View.GPU, View.SHARED, View.MONITOR)


class Followed:
    def __init__(self) -> None:
        self.views, self.troubles = [], []
        self.followed = NodeViews(OFFERED, self.views.append, lambda *told: self.troubles.append(told))

    def read(self, *values: str | None) -> "Followed":
        for value in values:
            self.followed.read(Node(ObjectMeta(name="n", labels={} if value is None else {LABEL: value})))
        return self


def test_views_follow_the_label_and_nobody_is_told_what_has_not_changed():
    found = Followed().read(None, None, "gpu", "gpu", "gpu.monitor", None)

    assert found.views == [OFFERED, (View.GPU,), (View.GPU, View.MONITOR), OFFERED]
    assert found.troubles == []


def test_a_label_that_cannot_be_read_leaves_what_was_and_is_told_once():
    found = Followed().read("gpu", "gpu,shared", "gpu,shared", "gpu")

    assert found.views == [(View.GPU,)]
    assert [reason for reason, _ in found.troubles] == ["ViewsLabel"]


def test_a_label_that_cannot_be_read_at_the_start_is_no_label():
    assert Followed().read("nonsense").views == [OFFERED]


def test_a_mistake_that_is_made_again_is_told_again():
    assert len(Followed().read("nonsense", "gpu", "nonsense", "other").troubles) == 3
