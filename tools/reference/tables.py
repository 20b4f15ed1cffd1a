"""Tables of Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; what stands in a cell may have `|` and line ends."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def code(text: object) -> str:
    """Return a text as code; nothing for an empty one."""
    return f"`{text}`" if str(text) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
