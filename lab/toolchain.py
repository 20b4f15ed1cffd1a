"""Asks the Go tool chain, before a build of minutes, whether it can do it, and says what to install if not."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from lab.errors import LabError
from lab.recipe import KUBERNETES_MODULE

#: The first Go that fetches a newer one where go.mod wants it (Source: go.dev/doc/toolchain).
_FETCHES_NEWER = (1, 21)
_REMEDY = "install Go 1.26 from https://go.dev/dl, or any from 1.21 on, which fetches 1.26 itself"
_WITHIN_SECONDS = 300.0


def require_go(environment: Mapping[str, str]) -> None:
    """Return if the Go on the PATH can build the lab; this fetches the version that go.mod wants, if need be.

    Raises:
        LabError: there is none, it is too old, or the wanted one cannot be fetched.
    """
    if shutil.which("go", path=environment.get("PATH", os.defpath)) is None:
        raise LabError(f"go is not on the PATH: {_REMEDY}")
    try:
        result = subprocess.run(
            ["go", "env", "GOVERSION"],
            cwd=KUBERNETES_MODULE,
            env=dict(environment),
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_WITHIN_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(
            f"`go env GOVERSION` did not end within {_WITHIN_SECONDS:.0f} s: is GOPROXY reachable?"
        ) from error
    if result.returncode != 0:
        raise LabError(f"go cannot build {KUBERNETES_MODULE}: {result.stderr.strip()}; {_REMEDY}")
    if too_old(version := result.stdout.strip()):
        raise LabError(f"{version} is too old: {_REMEDY}")


def too_old(version: str) -> bool:
    """Return whether a Go that calls itself `version`, as `go1.19.8`, does not know how to fetch a newer one."""
    match = re.match(r"go(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) < _FETCHES_NEWER
