"""A pytest plugin: each end-to-end test declares the seconds it may take, and the summary shows what it took.

A test over its budget does not fail (a busy machine is no fault of the driver); it is marked, so that a person sees it.
A worker of pytest-xdist sends its budgets along with its reports: who prints the table has not collected the tests.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_DEFAULT_SECONDS = 30.0
_BUDGET = "budget"
_HANG_FACTOR = 3.0
_HANG_EXTRA_SECONDS = 600.0


@dataclass
class _Row:
    budget: float
    spent: float = 0.0
    figures: list[str] = field(default_factory=list)


class BudgetPlugin:
    """Collects the seconds of set-up, call and tear-down of every test, and its figures; prints them at the end."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note the budgets and put long files first; a test that hangs ends after thrice its budget and ten minutes.

        Workers take file after file: a long one that begins last is waited for by all.
        """
        seconds: Counter[Path] = Counter()
        for item in items:
            marker = item.get_closest_marker("budget")
            if marker is None and "e2e" not in item.nodeid:
                continue
            budget = float(marker.args[0]) if marker else _DEFAULT_SECONDS
            item.user_properties.append((_BUDGET, budget))
            seconds[item.path] += int(budget)
            # Set-up is left out: the first one may build and start a cluster, with deadlines of its own.
            item.add_marker(pytest.mark.timeout(budget * _HANG_FACTOR + _HANG_EXTRA_SECONDS, func_only=True))
        items.sort(key=lambda item: (-seconds[item.path], item.path))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the phases of a test."""
        properties = dict(report.user_properties)
        if _BUDGET not in properties:
            return
        row = self._rows.setdefault(report.nodeid, _Row(float(str(properties[_BUDGET]))))
        row.spent += report.duration
        if report.when == "call":
            row.figures += [f"{name}: {value}" for name, value in report.user_properties if name != _BUDGET]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table and the totals."""
        ran = self._rows
        if not ran:
            return
        terminalreporter.section("seconds per end-to-end test (set-up and tear-down included)")
        for name, row in ran.items():
            over = "  OVER" if row.spent > row.budget else ""
            terminalreporter.write_line(f"{row.spent:7.1f} of {row.budget:5.0f}  {name.partition('::')[2]}{over}")
            for figure in row.figures:
                terminalreporter.write_line(f"{'':18}{figure}")
        spent = sum(row.spent for row in ran.values())
        budget = sum(row.budget for row in ran.values())
        terminalreporter.write_line(f"{spent:7.1f} of {budget:5.0f}  in all, {len(ran)} tests")
