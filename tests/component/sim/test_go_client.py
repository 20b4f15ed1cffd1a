"""A second, independent client of the library: a small program on go-nvml."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from dra_gpu_sim.boards import mig_tables
from tests.component.go_programs import builds_go, go_program

pytestmark = builds_go


@pytest.fixture(scope="module")
def program() -> Path:
    """The compiled program."""
    return go_program("go-nvml")


def run(program, node, *arguments):
    result = subprocess.run(
        [program, *arguments],
        env={**os.environ, **node.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("profile", ["A100", "H100", "GB200", "L4", "RTX-PRO-6000", "P-mixed"])
def test_go_nvml_sees_what_the_node_holds(program, make_node, profile):
    node = make_node(profile)
    seen = run(program, node)
    assert [(gpu["uuid"], gpu["name"], gpu["memory"]) for gpu in seen["gpus"]] == [
        (gpu.uuid, gpu.name, gpu.memory) for gpu in node.gpus
    ]
    assert seen["driver"] == "615.71.02"


def test_go_nvml_reads_profiles_and_placements_and_makes_and_removes_a_partition(program, make_node):
    node = make_node("H100", gpus=1)
    before = node.snapshot()
    mig = run(program, node, "-mig")["mig"]
    assert {row["name"]: (row["id"], row["sm"], row["starts"], row["size"]) for row in mig["profiles"]} == {
        f"MIG {row.name}": (row.id, row.sm, list(row.starts), row.units) for row in mig_tables()["H100-80GB"].profiles
    }
    assert (mig["gi"], mig["ci"], mig["sm"], mig["afterDestroy"]) == (14, 0, 16, "Invalid Argument")
    assert mig["uuid"].startswith("MIG-")
    assert node.snapshot() == before
