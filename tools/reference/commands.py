"""Every command with its flags, as the programs' own parsers have them."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import click
from tools.reference.tables import code, table

from dra_gpu.cli.main import main as kubectl_gpu
from dra_gpu.controller import settings as controller
from dra_gpu.controller import uninstall_check
from dra_gpu.mps import settings as mps
from dra_gpu.node import settings as node
from dra_gpu.webhook import settings as webhook

_HEAD = """# Commands

{note}
A flag of `dra-gpu` wins over its environment variable, that over the default. The chart sets them from its
[values](../values.md).

"""
_AFTER_NODE = """
`dra-gpu node leave` with the same flags takes the driver off the node: see
[Uninstall](../operations.md#uninstall).
"""
_PROGRAMS: dict[str, Callable[[Sequence[str], Mapping[str, str]], object]] = {
    "node": node.parse,
    "mps": mps.parse,
    "controller": controller.parse,
    "webhook": webhook.parse,
    "uninstall-check": uninstall_check.parse,
}
#: What the help of a flag ends with, as `dra_gpu.flags` writes it.
_VARIABLE = re.compile(r" \[\$(\w+)\]$")
_DEFAULT = re.compile(r" \(default: (.+)\)$")


def page(note: str) -> str:
    """Return the page."""
    parts = [_HEAD.format(note=note.format(source="the programs' parsers"))]
    for program, parse in _PROGRAMS.items():
        parser = _parser_of(parse)
        rows = [_flag(action) for action in parser._actions if action.dest != "help"]  # noqa: SLF001 - argparse has no other way to ask
        parts.append(f"## dra-gpu {program}\n\n{parser.description}\n\n")
        parts.append(table(("Flag", "Variable", "Default", "Meaning"), rows))
        parts.append(_AFTER_NODE if program == "node" else "")
        parts.append("\n")
    for name, command in sorted(kubectl_gpu.commands.items()):
        about = (command.help or "").partition("\n\n")[0]
        parts.append(f"## kubectl gpu {name}\n\n{' '.join(about.split())}\n\n")
        options = [_option(one) for one in command.params if isinstance(one, click.Option)]
        parts.append(table(("Flag", "Default", "Meaning"), options) + "\n")
    return "".join(parts).rstrip() + "\n"


class _AskedError(Exception):
    """Carries the parser from where a program would use it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def _parser_of(parse: Callable[[Sequence[str], Mapping[str, str]], object]) -> argparse.ArgumentParser:
    def asked(self: argparse.ArgumentParser, *_: Any) -> None:
        raise _AskedError(self)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", asked):
        try:
            parse([], {})
        except _AskedError as error:
            return error.parser
    raise AssertionError("the program has not used its parser")


def _flag(action: argparse.Action) -> tuple[str, str, str, str]:
    text = (action.help or "").replace("%%", "%")
    variable = _VARIABLE.search(text)
    text = _VARIABLE.sub("", text)
    default = _DEFAULT.search(text)
    text = _DEFAULT.sub("", text)
    value = f" {action.metavar}" if action.metavar else f" {'|'.join(action.choices)}" if action.choices else ""
    names = f"{', '.join(action.option_strings)}{value}"
    said = default[1] if default else ""
    in_words = action.default is None or isinstance(action.default, bool)
    shown = said if in_words else code(said)
    return code(names), code(variable[1]) if variable else "", "required" if action.required else shown, text


def _option(option: click.Option) -> tuple[str, str, str]:
    kinds = "|".join(option.type.choices) if isinstance(option.type, click.Choice) else option.metavar or ""
    text = option.help or ""
    found = re.search(r" \[default: (.+)\]$", text)
    default = found[1] if found else code(option.default) if isinstance(option.default, str) else ""
    shown = "required" if option.required else default
    return code(f"{', '.join(option.opts)} {kinds}".strip()), shown, re.sub(r" \[default: .+\]$", "", text)
