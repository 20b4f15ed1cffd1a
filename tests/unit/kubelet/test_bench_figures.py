"""How the benchmark merges runs and judges them."""

import json

import pytest

from tests.bench.figures import Figure, as_json, over_runs, percentile, table


def runs_of(*values: float, limit: float | None = 10) -> list[list[Figure]]:
    return [[Figure("prepare", value, "ms", floor=value / 2, limit=limit, target="10")] for value in values]


def test_runs_are_merged_into_lowest_median_and_highest():
    (row,) = over_runs(runs_of(9, 5, 7))

    assert (row.low, row.median, row.high, row.floor) == (5, 7, 9, 3.5)


@pytest.mark.parametrize(("values", "verdict"), [((9, 8, 11), "PASS"), ((9, 12, 11), "MISS"), ((10, 10, 10), "PASS")])
def test_a_target_is_met_when_the_median_run_met_it(values: tuple[float, ...], verdict: str):
    assert over_runs(runs_of(*values))[0].verdict == verdict


def test_each_run_is_judged_by_the_limit_of_its_own_floor():
    slow_machine = [Figure("prepare", 20, "ms", limit=25)]
    fast_machine = [Figure("prepare", 12, "ms", limit=10)]

    assert over_runs([slow_machine, slow_machine, fast_machine])[0].verdict == "PASS"


def test_a_figure_without_target_has_no_verdict():
    assert over_runs(runs_of(1, limit=None))[0].verdict == ""


def test_a_percentile_is_the_nearest_rank():
    assert percentile(range(100), 0.99) == 99
    assert percentile([5], 0.5) == 5


def test_the_table_aligns_figures_and_says_pass_or_miss():
    lines = table(over_runs(runs_of(5))).splitlines()

    assert lines[0].split() == ["figure", "unit", "floor", "min", "median", "max", "target"]
    assert lines[1].split() == ["prepare", "ms", "2.50", "5.00", "5.00", "5.00", "10", "PASS"]


def test_json_holds_every_figure_and_note():
    document = json.loads(as_json(over_runs(runs_of(5)), ["on tmpfs"]))

    assert document["figures"][0]["median"] == 5
    assert document["notes"] == ["on tmpfs"]
