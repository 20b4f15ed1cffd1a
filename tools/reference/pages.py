"""Which pages there are, and where."""

from pathlib import Path

from tools.reference import commands, devices, kinds

DIRECTORY = Path(__file__).parents[2] / "docs" / "reference"
_NOTE = "Made by `make docs` from {source}: change that.\n"


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    return {
        "commands.md": commands.page(_NOTE),
        "devices.md": devices.page(_NOTE),
        "kinds.md": kinds.page(_NOTE),
    }


def write() -> None:
    """Write every page and remove what is none any more."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for path in DIRECTORY.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (DIRECTORY / name).write_text(text)
