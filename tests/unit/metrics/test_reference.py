"""docs/metrics.md is what the processes define, and their names are as Prometheus wants them."""

import re
from pathlib import Path

import pytest

from dra_gpu.metrics import reference

ALL = [one for found in reference.definitions().values() for one in found]


def test_the_page_is_current():
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text() == reference.render(), "run `make metrics-doc`"


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_name_says_whose_it_is_and_which_unit_it_has(one):
    assert re.fullmatch(r"(nvidia_dra|dra_gpu)(_[a-z]+)+", one.name)
    assert one.name.endswith("_total") == (one.kind == "counter")
    assert not re.search(r"_(milli|micro|kib|mib|gib|percent)", one.name)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_no_label_can_have_more_values_than_there_are_gpus_claims_and_words(one):
    few = {"driver", "operation", "error_type", "device_type", "node", "state", "version", "component", "resource"}
    few |= {"gpu", "capacity", "namespace", "claim", "source", "what", "reason", "direction", "queue", "status"}
    few |= {"kind", "outcome"}
    assert set(one.labels) <= few
