"""The programs the lab takes from Debian: installed with apt-get where they are absent."""

import shutil
import subprocess
from pathlib import Path

from lab.errors import LabError
from lab.progress import Progress

#: Program -> Debian package. runc is Debian's: one built without libseccomp refuses the default seccomp profile.
_PROGRAMS = {
    "runc": "runc",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "openssl": "openssl",
    "mount": "mount",
    "gcc": "build-essential",
}
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEADLINE_SECONDS = 300.0


def find(program: str) -> Path | None:
    """Return the path of a program of the system, looked for where Debian puts programs."""
    found = shutil.which(program, path=_SEARCH)
    return Path(found) if found else None


def require(program: str) -> Path:
    """Return the path of a program of the system.

    Raises:
        LabError: it is not installed.
    """
    found = find(program)
    if found is None:
        raise LabError(f"{program} is not installed: apt-get install {_PROGRAMS.get(program, program)}")
    return found


def install_missing(progress: Progress) -> None:
    """Install the Debian packages of the programs that are absent; does nothing where all are there.

    Raises:
        LabError: apt-get failed; the text holds its last lines.
    """
    wanted = sorted(package for program, package in _PROGRAMS.items() if find(program) is None)
    if not wanted:
        return
    with progress.step(f"install Debian packages {' '.join(wanted)}"):
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wanted]
        if _run(install).returncode != 0:
            _run(["apt-get", "update", "-q"])
            result = _run(install)
            if result.returncode != 0:
                raise LabError(f"apt-get could not install {' '.join(wanted)}:\n{result.stdout[-2000:]}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["env", "DEBIAN_FRONTEND=noninteractive", *command],
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_DEADLINE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(command)} did not end within {_DEADLINE_SECONDS:.0f} s") from error
