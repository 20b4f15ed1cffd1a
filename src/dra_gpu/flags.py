"""Flags of a process, each with an environment variable under which a chart gives it."""

import argparse
import enum
from collections.abc import Mapping
from pathlib import Path

_HELP_COLUMN = 32  # beside the longest flag; argparse's own 24 breaks most of ours into two lines


def new_parser(program: str, usage: str, description: str) -> argparse.ArgumentParser:
    """Return a parser whose usage is one line, so that an error is not lost below a list of all flags."""
    return argparse.ArgumentParser(
        prog=program,
        usage=usage,
        description=description,
        epilog="A flag wins over its environment variable, which stands in brackets.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=_HELP_COLUMN),
    )


class Flags:
    """Adds flags to a parser; a flag wins over its environment variable, that over the default.

    Args:
        parser: takes the flags.
        environment: of the process.
    """

    def __init__(self, parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
        self._parser = parser
        self._environment = environment

    def add(self, flag: str, variable: str | None, default: object, help_text: str, **options: object) -> None:
        """Add a flag; an empty variable counts as none."""
        value = self._environment.get(variable, "") if variable else ""
        shown = _shown(default)
        text = f"{help_text} (default: {shown})" if shown else help_text
        text = f"{text} [${variable}]" if variable else text
        if "action" not in options and "choices" not in options:
            options["metavar"] = _metavar(flag, options.get("type"))
        self._parser.add_argument(flag, default=value or default, help=text.replace("%", "%%"), **options)  # type: ignore[arg-type]  # argparse's own keywords


def _shown(default: object) -> str:
    """Return how a user would write a default; "" for none."""
    match default:
        case None | bool():
            return ""
        case float():
            return f"{default:g}"
        case tuple():
            return ",".join(str(one.value if isinstance(one, enum.Enum) else one) for one in default)
        case _:
            return str(default)


def _metavar(flag: str, kind: object) -> str:
    """Return what stands for the value: its kind where that says more than the last word of the flag."""
    if kind is Path:
        return "PATH"
    return "SECONDS" if kind is seconds else flag.rsplit("-", 1)[-1].upper()


def seconds(text: str) -> float:
    """Read a number of seconds above 0; a `type` for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return value
