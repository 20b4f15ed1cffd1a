"""What the commands of the driver say about themselves."""

import re
import sys

import pytest

from dra_gpu import __main__ as command
from dra_gpu.controller import settings as controller_settings
from dra_gpu.mps import settings as mps_settings
from dra_gpu.node import settings as node_settings
from dra_gpu.webhook import settings as webhook_settings

SETTINGS = {
    "node": node_settings,
    "mps": mps_settings,
    "controller": controller_settings,
    "webhook": webhook_settings,
}


def help_of(name, capsys, environment):
    with pytest.raises(SystemExit) as ended:
        SETTINGS[name].parse(["--help"], environment)
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["dra-gpu", *arguments])
    return command.main()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_usage_is_one_line_so_that_an_error_stands_out(name, capsys):
    with pytest.raises(SystemExit) as ended:
        SETTINGS[name].parse(["--vendor=nvidia", "--log-level=loud"], {})

    usage, error = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert usage.startswith(f"usage: dra-gpu {name} ")
    assert "--log-level" in error


def test_help_shows_each_default_and_its_variable(capsys):
    text = help_of("node", capsys, {})

    assert "--driver-root PATH driver installation, by its path on the host (default: /) [$NVIDIA_DRIVER_ROOT]" in text
    assert re.search(r"--gpu-timeout SECONDS .*? \(default: 15\)", text)
    assert re.search(r"--views VIEWS .*? \(default: [a-z,-]*\bgpu,shared\b[a-z,-]*\) \[\$VIEWS\]", text)


def test_the_default_in_the_help_is_not_what_the_environment_says(capsys):
    assert "(default: /run/dra-gpu/mps) [$MPS_DIRECTORY]" in help_of("mps", capsys, {"MPS_DIRECTORY": "/100%/mps"})


def test_every_help_that_the_usage_names_is_there(capsys, monkeypatch):
    assert run(monkeypatch, "--help") == 0
    named = re.findall(r"\(dra-gpu (.*?) --help\)", capsys.readouterr().out)

    assert named == [*SETTINGS, "uninstall-check"]


def test_an_unknown_command_is_named_with_those_there_are(capsys, monkeypatch):
    assert run(monkeypatch, "nodes") == 2

    said = "dra-gpu: 'nodes' is no command: write node, mps, controller, webhook or uninstall-check (dra-gpu --help)\n"
    assert capsys.readouterr().err == said
