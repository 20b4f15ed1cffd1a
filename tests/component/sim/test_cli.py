"""The commands of dra-gpu-sim."""

import argparse
import json
import os
import subprocess
import sys

import pytest

from dra_gpu_sim.arguments import parser
from dra_gpu_sim.cli import main
from dra_gpu_sim.node import SimulatedNode


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "node"
    assert main(["create", "--profile", "h100", "--gpus", "2", str(path)]) == 0
    return path


def test_create_says_what_it_made(tmp_path, capsys):
    main(["create", "--profile", "L4", "--gpus", "2", str(tmp_path / "n")])
    assert capsys.readouterr().out == f"2 simulated GPUs (L4) in {tmp_path}/n; driver root {tmp_path}/n/driver\n"


def test_create_refuses_a_node_that_exists_and_force_replaces_it(root, capsys):
    assert main(["create", str(root)]) == 1
    assert "File exists" in capsys.readouterr().err
    assert main(["create", "--force", "--profile", "L4", str(root)]) == 0
    assert len(SimulatedNode(root).gpus) == 4


def test_show_prints_an_aligned_table_with_what_is_wrong(root, capsys):
    main(["inject", str(root), "--lost", "--gpu", "1"])
    main(["inject", str(root), "--call", "nvmlDeviceGetName", "--code", "999", "--count", "2"])
    capsys.readouterr()
    main(["show", str(root)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["GPU", "NAME", "UUID", "PCI"]
    assert lines[1].endswith("nvmlDeviceGetName: code 999, 2 times")
    assert lines[2].endswith("lost; nvmlDeviceGetName: code 999, 2 times")
    assert {line.index("GPU-") for line in lines[1:]} == {lines[0].index("UUID")}


def test_show_prints_json(root, capsys):
    capsys.readouterr()
    main(["show", "-o", "json", str(root)])
    document = json.loads(capsys.readouterr().out)
    assert (document["profile"], document["driverVersion"]) == ("H100", "615.71.02")
    assert document["gpus"][1]["memoryTotalMiB"] == 81_559


def test_inject_and_clear_work_on_the_calls_named(root):
    main(["inject", str(root), "--call", "nvidia-smi compute-policy", "--delay-ms", "20"])
    main(["inject", str(root), "--call", "nvmlInit_v2", "--code", "9"])
    assert main(["clear", str(root), "--call", "nvmlInit_v2"]) == 0
    assert [fault.call for fault in SimulatedNode(root).faults()] == ["nvidia-smi compute-policy"]


def test_inject_reports_an_xid_and_changes_the_recovery_action(root):
    assert main(["inject", str(root), "--gpu", "0", "--xid", "48"]) == 0
    assert SimulatedNode(root).gpus[0].recovery_action == 1


@pytest.mark.parametrize("arguments", [["--xid", "79"], ["--lost"]])
def test_what_happens_to_a_gpu_needs_its_index(root, capsys, arguments):
    assert main(["inject", str(root), *arguments]) == 1
    assert "this needs --gpu" in capsys.readouterr().err


def test_inject_without_anything_to_inject_is_refused(root, capsys):
    assert main(["inject", str(root)]) == 1
    assert "nothing to inject" in capsys.readouterr().err


def test_calls_are_counted_and_forgotten(root, capsys, load):
    nvml = load(SimulatedNode(root))
    for _ in range(3):
        nvml.nvmlDeviceGetCount()
    capsys.readouterr()
    main(["calls", str(root), "--count", "--forget"])
    assert capsys.readouterr().out.split() == ["3", "nvmlDeviceGetCount_v2", "1", "nvmlInitWithFlags"]
    main(["calls", str(root)])
    assert capsys.readouterr().out == ""


def test_a_place_without_a_node_is_told_with_the_remedy(tmp_path, capsys):
    assert main(["show", str(tmp_path)]) == 1
    assert "holds no simulated node: make one with dra-gpu-sim create" in capsys.readouterr().err


def test_an_unknown_profile_lists_the_known_ones(tmp_path, capsys):
    assert main(["create", "--profile", "H900", str(tmp_path / "x")]) == 1
    assert "use one of A100" in capsys.readouterr().err


def test_profiles_are_listed(capsys):
    main(["profiles"])
    assert "P-nvl4" in capsys.readouterr().out


def test_destroy_removes_everything(root):
    assert main(["destroy", str(root)]) == 0
    assert not root.exists()


def test_a_reader_that_has_seen_enough_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody_reads:
        result = subprocess.run(
            [sys.executable, "-m", "dra_gpu_sim.cli", "profiles"],
            stdout=nobody_reads,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )

    assert (result.returncode, result.stderr) == (0, b"")


def test_help_explains_every_argument():
    [commands] = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    arguments = {(name, one.dest): one.help for name, command in commands.choices.items() for one in command._actions}

    assert [name for name, text in arguments.items() if not text] == []
