"""Starts a program that has a directory of its own at /dev/shm: `python -m dra_gpu.mps.launch DIRECTORY PROGRAM …`.

An MPS daemon and its clients must see the same /dev/shm, and two GPUs' must not see each other's; so each daemon gets a
mount namespace in which /dev/shm is its GPU's directory, which its clients' containers mount there too.
"""

import os
import sys

from dra_gpu.mps import linux

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where the C library keeps POSIX shared memory (shm_overview(7))
_CANNOT = 126  # what shells answer when a program is there and cannot be started


def main() -> int:
    """Become the program; returns only when that is not possible."""
    directory, program, *arguments = sys.argv[1:]
    try:
        linux.own_mounts()
        linux.bind(directory, SHARED_MEMORY)
        os.execv(program, [program, *arguments])  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stderr.write(f"{program} cannot be started with {directory} at {SHARED_MEMORY} ({error})\n")
        return _CANNOT


if __name__ == "__main__":
    sys.exit(main())
