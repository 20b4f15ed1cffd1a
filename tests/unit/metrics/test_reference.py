"""docs/metrics.md is what the processes define, and their names are as Prometheus wants them."""

import re
from pathlib import Path

import pytest

from dra_gpu.metrics import reference
from dra_gpu.metrics.controller import ControllerMetrics
from dra_gpu.metrics.mps import MpsMetrics
from dra_gpu.metrics.node import NodeMetrics
from dra_gpu.metrics.registry import Registry, Snapshot
from dra_gpu.metrics.webhook import WebhookMetrics

ALL = [one for found in reference.definitions().values() for one in found]


def test_the_page_is_current():
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text() == reference.render(), "run `make metrics-doc`"


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_name_says_whose_it_is_and_which_unit_it_has(one):
    assert re.fullmatch(r"(nvidia_dra|dra_gpu)(_[a-z]+)+", one.name)
    assert one.name.endswith("_total") == (one.kind == "counter")
    assert not re.search(r"_(milli|micro|kib|mib|gib|percent)", one.name)


#: Every label there is, with what bounds the number of its values. A label of a person's choice is bounded by what is
#: held or shared on a node now (its metric is a snapshot, which forgets), all others by a list of words in the code.
BOUNDS = {
    "driver": "ours",
    "node": "the one",
    "component": "ours",
    "version": "of this release and of the interpreter",
    "operation": "prepare and unprepare; those of admission",
    "outcome": "of a review",
    "status": "HTTP's",
    "kind": "kinds that are reviewed, and other",
    "error_type": "RefusalKind",
    "device_type": "View",
    "state": "of a record; of a GPU",
    "resource": "what is watched",
    "queue": "ours",
    "phase": "Phase",
    "capacity": "of a GPU",
    "source": "of a figure",
    "what": "memory and SMs",
    "reason": "why there is no figure",
    "direction": "of a link",
    "gpu": "GPUs of the node",
    "partition": "places on a GPU",
    "fault": "FaultKind",
    "value": "an XID or recovery action, the one that stands now",
    "effect": "Effect",
    "xid": "three digits",
    "event": "HealthEventKind",
    "result": "done and failed",
    "namespace": "claims on the node now",
    "claim": "claims on the node now",
}
OF_PEOPLE = {"namespace", "claim"}


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_every_label_has_a_bound(one):
    assert set(one.labels) <= BOUNDS.keys(), "say what bounds the new label, which must not be a UID or a message"


def test_every_bound_is_that_of_a_label():
    assert BOUNDS.keys() <= {label for one in ALL for label in one.labels}


@pytest.mark.parametrize(
    "define", [NodeMetrics.of, MpsMetrics.of, ControllerMetrics.of, WebhookMetrics.of], ids=lambda one: one.__self__
)
def test_what_people_name_stands_only_in_metrics_that_forget(define):
    registry = Registry("test")
    define(*([registry, "gpu.nvidia.com"] if define == NodeMetrics.of else [registry]))

    for collector in registry._registry._collector_to_names:
        if not isinstance(collector, Snapshot):
            assert not OF_PEOPLE & set(getattr(collector, "_labelnames", ())), collector
