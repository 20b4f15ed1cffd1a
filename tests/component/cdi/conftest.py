"""The CDI library of containerd and CRI-O, as a small program built once per session into the cache."""

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[2] / "go-cdi"


@pytest.fixture(scope="session")
def go_cdi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program; Go's own build cache makes a second build a matter of a second."""
    if shutil.which("go") is None:
        pytest.fail("these tests ask the container runtimes' own CDI library: install Go (see CONTRIBUTING)")
    program = tmp_path_factory.mktemp("go-cdi") / "go-cdi"
    build = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", program, "."], cwd=_SOURCE, capture_output=True, text=True, check=False
    )
    assert build.returncode == 0, build.stderr
    return program
