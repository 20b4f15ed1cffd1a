"""`kubectl gpu cordon` and its like as commands: exit status, streams, formats."""

import json

import pytest
from click.testing import CliRunner

from dra_gpu.apiserver import errors
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.cli import top
from dra_gpu.cli.cordoning import Service
from dra_gpu.cli.gpu_target import NoSuchGpuError
from dra_gpu.cli.main import main
from dra_gpu.cli.top import GpuUse, Seen
from tests.unit.cli.test_reset import Cluster, claim

COMMANDS = ("cordon", "drain", "uncordon", "reset")


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """A cluster with one claim on gpu-0, whichever way it is reached."""
    made = Cluster(claim("job"))

    async def found(_api, node, gpu):
        if (node, gpu) != ("node-a", "gpu-0"):
            raise NoSuchGpuError(f"node {node} has no GPU {gpu!r}")
        return made.service()

    monkeypatch.setattr(Service, "find", found)
    monkeypatch.setattr(HttpKubernetesApi, "__init__", lambda *_: None)
    monkeypatch.setattr(HttpKubernetesApi, "close", lambda *_: None)
    monkeypatch.setattr("dra_gpu.apiserver.connection.from_kubeconfig", lambda *_: None)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    return made


def run(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("command", COMMANDS)
def test_machines_get_one_document_on_stdout_and_nothing_else_there(command):
    result = run(command, "node-a", "gpu-0", "-o", "json")

    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["action"], found["node"], found["gpu"]) == (command, "node-a", "gpu-0")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_gpu_that_is_not_there_is_one_line_and_exit_status_1(command):
    result = run(command, "node-a", "gpu-9")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: node node-a has no GPU 'gpu-9'\n"


def test_a_cordon_names_who_keeps_what_he_has(cluster):
    result = run("cordon", "node-a", "gpu-0")

    assert "cordoned (2 DeviceTaintRules); these claims keep what they have of it" in result.stdout
    assert "team/job" in result.stdout
    assert len(cluster.rules) == 2


def test_a_drain_that_waits_in_vain_fails_and_says_for_whom(cluster):
    cluster.keep = ("job",)

    result = run("drain", "node-a", "gpu-0", "--wait", "--timeout", "0")

    assert result.exit_code == 1
    assert "team/job still has it" in result.stderr


@pytest.mark.usefixtures("cluster")
def test_a_reset_says_on_stderr_how_far_it_is():
    result = run("reset", "node-a", "gpu-0")

    assert "waiting for team/job to end" in result.stderr
    assert "its node resets it" in result.stderr
    assert result.stdout.startswith("gpu-0 of node node-a")


@pytest.fixture
def seen(monkeypatch, cluster):
    """What `top` sees."""
    assert cluster

    async def see(_api, node, _namespace):
        gpus = [GpuUse("node-a", "gpu-0", "GPU-0", "H100", memory=80 * 2**30)] if node != "node-z" else []
        return Seen(gpus, ("node node-b: does not answer",))

    monkeypatch.setattr(top, "see", see)


@pytest.mark.usefixtures("seen")
def test_top_shows_what_there_is_and_what_cannot_be_told():
    result = run("top")

    assert "80.0Gi" in result.stdout
    assert "node node-b: does not answer" in result.stderr


@pytest.mark.usefixtures("seen")
def test_top_leaves_stdout_empty_where_there_is_no_gpu():
    result = run("top", "node-z")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "No GPU is published on node 'node-z'" in result.stderr


@pytest.mark.usefixtures("seen")
def test_top_for_machines_is_json():
    assert [gpu["name"] for gpu in json.loads(run("top", "-o", "json").stdout)["gpus"]] == ["gpu-0"]


def test_an_api_server_that_is_away_for_a_moment_ends_no_watch_that_has_begun(monkeypatch, cluster):
    assert cluster
    looks = [Seen([]), errors.UnavailableError("list", "pods", detail="refused"), Seen([]), KeyboardInterrupt()]

    async def see(*_):
        look = looks.pop(0)
        if isinstance(look, BaseException):
            raise look
        return look

    monkeypatch.setattr(top, "see", see)
    monkeypatch.setattr("time.sleep", lambda _: None)

    result = run("top", "--watch")

    assert looks == []
    assert result.stderr.count("No GPU is published") == 2
    assert "Warning: cannot list pods: no answer: refused; check that the API server runs" in result.stderr


def test_a_kubeconfig_that_is_absent_is_named(tmp_path):
    result = run("cordon", "node-a", "gpu-0", "--kubeconfig", str(tmp_path / "absent"))

    assert result.exit_code == 1
    assert f"kubeconfig {tmp_path / 'absent'} does not exist" in result.stderr
