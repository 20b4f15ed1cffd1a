"""Small Go programs by which the libraries of Kubernetes, containerd and NVIDIA judge what is here.

Each is built once for its sources and kept in the cache. Of several test processes one builds and the others wait: side
by side they would take twice as long, and a first build is a matter of minutes.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_gpu_sim.build import cache_directory

_TESTS = Path(__file__).parents[1]

#: For tests that need such a program: the first of them builds it, on whatever machine.
builds_go = pytest.mark.timeout(2400)


def go_program(name: str) -> Path:
    """Return the program whose sources are in `tests/NAME`."""
    go = shutil.which("go")
    if go is None:
        pytest.fail(f"Go is not in PATH: tests/{name} asks another implementation; install Go 1.26 or later")
    sources = _TESTS / name
    digest = hashlib.sha256(b"".join((sources / file).read_bytes() for file in ("go.mod", "go.sum", "main.go")))
    target = cache_directory() / f"{name}-{digest.hexdigest()[:20]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            made = target.with_suffix(f".{os.getpid()}")
            command = [go, "build", "-mod=readonly", "-o", made, "."]
            built = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stderr
            made.rename(target)
    return target
