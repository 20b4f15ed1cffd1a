"""Any history of resizes, claims, programs and crashes: nothing is promised twice, and nothing is lost.

Ten thousand steps in virtual time, in four parts that may run at once. A failure names its seed, with which
`tests.component.resize.histories` does the same again. `DRA_GPU_RESIZE_STEPS` asks for another number of steps.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = int(os.environ.get("DRA_GPU_RESIZE_STEPS", "10000"))
PARTS = 4
LENGTH = 500
PATIENCE = 900.0
ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_history_promises_nothing_twice_and_loses_nothing(part: int):
    seeds = [str(seed) for seed in range(part, STEPS // LENGTH, PARTS)]
    command = [sys.executable, "-m", "tests.component.resize.histories", str(LENGTH), *seeds]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}

    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=PATIENCE
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"seed {seed}, {LENGTH} steps" for seed in seeds]
