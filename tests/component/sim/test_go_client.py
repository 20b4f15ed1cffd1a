"""A second, independent client of the library: a small program on go-nvml."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_gpu_sim.boards import mig_tables
from dra_gpu_sim.build import cache_directory

SOURCES = Path(__file__).parents[2] / "go-nvml"


@pytest.fixture(scope="module")
def program() -> Path:
    """The compiled program; kept by the content of its sources, since its first build takes a while."""
    go = shutil.which("go")
    assert go, "Go is not in PATH: the simulated library is checked with go-nvml too; install Go 1.24 or later"
    digest = hashlib.sha256(b"".join((SOURCES / name).read_bytes() for name in ("go.mod", "go.sum", "main.go")))
    target = cache_directory() / f"go-nvml-{digest.hexdigest()[:20]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_suffix(f".{os.getpid()}")
        built = subprocess.run([go, "build", "-o", made, "."], cwd=SOURCES, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr
        made.rename(target)
    return target


def run(program, node, *arguments):
    result = subprocess.run(
        [program, *arguments],
        env={**os.environ, **node.environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("profile", ["A100", "H100", "GB200", "L4", "RTX-PRO-6000", "P-mixed"])
def test_go_nvml_sees_what_the_node_holds(program, make_node, profile):
    node = make_node(profile)
    seen = run(program, node)
    assert [(gpu["uuid"], gpu["name"], gpu["memory"]) for gpu in seen["gpus"]] == [
        (gpu.uuid, gpu.name, gpu.memory) for gpu in node.gpus
    ]
    assert seen["driver"] == "615.71.02"


@pytest.mark.timeout(300)
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
