"""Flags of a process, each with an environment variable under which a chart gives it."""

import argparse
from collections.abc import Mapping


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
        text = f"{help_text} [{variable}]" if variable else help_text
        self._parser.add_argument(flag, default=value or default, help=text, **options)  # type: ignore[arg-type]  # argparse's own keywords


def seconds(text: str) -> float:
    """Read a number of seconds above 0; a `type` for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return value
