"""Tables for people: columns as wide as what stands in them."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows under their header, aligned; a cell may have several lines."""
    split = [[cell.split("\n") for cell in row] for row in [header, *rows]]
    widths = [max(len(line) for row in split for line in row[column]) for column in range(len(header))]
    lines = []
    for row in split:
        for number in range(max(map(len, row))):
            cells = [cell[number] if number < len(cell) else "" for cell in row]
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return "\n".join(lines)
