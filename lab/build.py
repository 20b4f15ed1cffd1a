"""Builds the programs of `recipe` into a cache outside the checkout.

Once per set of pinned modules, resumable, one build at a time. A progress line appears at least every quarter of a
minute, also while another build is waited for, so that a hang is seen.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError
from lab.progress import Progress
from lab.recipe import Binary, Recipe, cluster, helm
from lab.toolchain import require_go

_HEARTBEAT_SECONDS = 15.0
_POLL_SECONDS = 0.2
#: A first build takes 10-16 minutes on two free cores; one that something else slows down gets thrice that.
_DEADLINE_SECONDS = 3000.0


def cache_dir() -> Path:
    """Return the lab's cache: `$DRA_GPU_CACHE/lab`, by default below `~/.cache/dra-gpu`."""
    return Path(os.environ.get("DRA_GPU_CACHE") or Path.home() / ".cache" / "dra-gpu") / "lab"


def build_dir(recipe: Recipe) -> Path:
    """Return the directory of the build that belongs to the pinned modules of this checkout."""
    return cache_dir() / recipe.fingerprint()


def bin_dir() -> Path:
    """Return where the programs of a cluster lie once built."""
    return build_dir(cluster()) / "bin"


def helm_program() -> Path:
    """Return where Helm lies once built."""
    return build_dir(helm()) / "bin" / "helm"


def missing(recipe: Recipe) -> list[Binary]:
    """Return what is not built yet."""
    return [binary for binary in recipe.binaries if not (build_dir(recipe) / "bin" / binary.name).is_file()]


def build(progress: Progress, recipe: Recipe | None = None) -> Path:
    """Build what is missing of a recipe (the cluster's) and return the directory of the programs.

    Raises:
        LabError: Go is absent, a build failed, or another build did not end in time.
    """
    recipe = recipe or cluster()
    directory = build_dir(recipe)
    programs = directory / "bin"
    if not missing(recipe):
        return programs
    # The build must be the same whatever the caller's Go settings are, except for where modules come from.
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    require_go(environment)
    programs.mkdir(parents=True, exist_ok=True)
    with _lock(directory / "lock", progress):
        for leftover in programs.rglob(".*.partial"):
            leftover.unlink()
        todo = missing(recipe)
        # A go that is stopped leaves its work directory: gigabytes, which here the next build removes.
        work = directory / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(exist_ok=True)
        environment["GOTMPDIR"] = str(work)
        for position, binary in enumerate(todo, start=1):
            title = f"build {position}/{len(todo)} {binary.name}"
            _build_one(binary, programs / binary.name, environment, title, progress)
        shutil.rmtree(work, ignore_errors=True)
    return programs


def build_in_background() -> Path:
    """Start `build` as a process of its own and return the path of its log; a later `build` waits for it."""
    directory = build_dir(cluster())
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "build.log"
    with log.open("ab") as stream:
        subprocess.Popen(
            [sys.executable, "-m", "lab", "build"],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    return log


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the build lock; the kernel frees it when this process ends, however it ends."""
    with path.open("a+") as file:
        began = told = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if now - began > _DEADLINE_SECONDS:
                    raise LabError(
                        f"another build holds {path} for {now - began:.0f} s: look at it, then try again"
                    ) from None
                if now - told >= _HEARTBEAT_SECONDS or told == began:
                    progress.say(f"waiting for another build (it holds {path}), {now - began:.0f} s so far")
                    told = now
                time.sleep(_POLL_SECONDS)
        yield


def _build_one(binary: Binary, target: Path, environment: dict[str, str], title: str, progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    command = ["nice", "-n", "5", "go", "build", "-v", *binary.flags, "-o", str(partial), binary.package]
    with progress.step(title), tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=binary.module, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            _watch(process, binary, output.fileno(), progress)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode != 0:
            output.seek(0)
            tail = "".join(output.readlines()[-30:])
            raise LabError(f"go build of {binary.package} failed with {process.returncode}; its last words:\n{tail}")
        partial.replace(target)


def _watch(process: subprocess.Popen[bytes], binary: Binary, output: int, progress: Progress) -> None:
    began = told = time.monotonic()
    while True:
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if now - began > _DEADLINE_SECONDS:
                raise LabError(
                    f"go build of {binary.name} takes longer than {_DEADLINE_SECONDS:.0f} s: given up"
                ) from None
            if now - told >= _HEARTBEAT_SECONDS:
                compiled = os.pread(output, 1 << 24, 0).count(b"\n")
                progress.say(f"  {binary.name}: {now - began:.0f} s, {compiled} packages compiled or fetched")
                told = now
        else:
            return
