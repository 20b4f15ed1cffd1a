"""`kubectl gpu list` as a command: its exit status, its two streams, and the kubeconfig it takes."""

import json

import pytest
from click.testing import CliRunner

from dra_gpu.cli import listing
from dra_gpu.cli.main import main


@pytest.fixture
def asked(monkeypatch):
    """A cluster without GPUs; what was asked of it."""
    calls = []

    async def read(kubeconfig, context, node):
        calls.append((kubeconfig, context, node))
        return listing.Found([])

    monkeypatch.setattr(listing, "read", read)
    return calls


def gpu_list(*arguments, env=None):
    return CliRunner().invoke(main, ["list", *arguments], env=env)


def test_a_list_without_gpus_leaves_stdout_empty_for_the_next_program_in_the_pipe(asked):
    result = gpu_list("--node", "node-z")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "node 'node-z'" in result.stderr


def test_what_could_not_be_read_is_told_beside_the_list(monkeypatch):
    async def read(*_):
        return listing.Found([], ("ResourceClaim default/odd: Expected `str`, got `int`",))

    monkeypatch.setattr(listing, "read", read)

    result = gpu_list("-o", "json")

    assert json.loads(result.stdout) == {"gpus": []}
    assert "ResourceClaim default/odd: Expected `str`, got `int`" in result.stderr


def test_machines_get_an_empty_list(asked):
    result = gpu_list("-o", "json")

    assert json.loads(result.stdout) == {"gpus": []}
    assert result.stderr == ""


def test_of_several_kubeconfigs_the_first_that_exists_is_taken(asked, tmp_path):
    there = tmp_path / "there"
    there.touch()

    gpu_list(env={"KUBECONFIG": f"{tmp_path / 'absent'}:{there}"})

    assert asked == [(there, None, "")]


def test_without_kubeconfig_the_one_at_home_is_taken(asked, tmp_path):
    gpu_list(env={"KUBECONFIG": "", "HOME": str(tmp_path)})

    assert asked == [(tmp_path / ".kube/config", None, "")]


def test_a_kubeconfig_that_is_absent_is_named_in_one_line(tmp_path):
    result = gpu_list("--kubeconfig", str(tmp_path / "absent"))

    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: kubeconfig {tmp_path / 'absent'} does not exist; set KUBECONFIG or --kubeconfig to the path of one\n"
    )


def test_help_names_every_format_and_the_defaults():
    text = " ".join(gpu_list("--help").stdout.split())

    assert "[default: table]" in text
    assert "[default: the first file of $KUBECONFIG that exists, or ~/.kube/config]" in text
