"""Figures, their targets, and the table they are shown in."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one run.

    Attributes:
        key: what it is, the same in each run.
        value: in `unit`.
        unit: ms, MB, s, or x for a ratio.
        floor: what the same run could at best have reached, measured beside it.
        limit: what the value may be at most; None where the figure is only stated.
        target: the limit in words.
    """

    key: str
    value: float
    unit: str
    floor: float | None = None
    limit: float | None = None
    target: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure over all runs; `verdict` is PASS, MISS, or empty where there is no target."""

    key: str
    unit: str
    floor: float | None
    low: float
    median: float
    high: float
    target: str
    verdict: str


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def over_runs(runs: Sequence[Sequence[Figure]]) -> list[Row]:
    """Merge runs; a target is met when it was met in the median run."""
    by_key: dict[str, list[Figure]] = {}
    for run in runs:
        for figure in run:
            by_key.setdefault(figure.key, []).append(figure)
    return [_row(figures) for figures in by_key.values()]


def table(rows: Sequence[Row]) -> str:
    """The rows as an aligned table."""
    header = ("figure", "unit", "floor", "min", "median", "max", "target", "")
    lines = [header] + [
        (
            row.key,
            row.unit,
            "-" if row.floor is None else f"{row.floor:.2f}",
            f"{row.low:.2f}",
            f"{row.median:.2f}",
            f"{row.high:.2f}",
            row.target or "-",
            row.verdict,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    left = {0, 1, 6, 7}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def as_json(rows: Sequence[Row], notes: Sequence[str]) -> str:
    """The rows for a program."""
    return json.dumps({"figures": [asdict(row) for row in rows], "notes": list(notes)}, indent=2)


def _row(figures: Sequence[Figure]) -> Row:
    values = [figure.value for figure in figures]
    floors = [figure.floor for figure in figures if figure.floor is not None]
    excess = [figure.value - figure.limit for figure in figures if figure.limit is not None]
    verdict = "" if not excess else "PASS" if statistics.median(excess) <= 0 else "MISS"
    return Row(
        figures[0].key,
        figures[0].unit,
        statistics.median(floors) if floors else None,
        min(values),
        statistics.median(values),
        max(values),
        figures[0].target,
        verdict,
    )
