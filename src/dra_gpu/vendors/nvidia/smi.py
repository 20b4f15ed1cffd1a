"""Time slices by `nvidia-smi compute-policy`: NVML has no call for them.

The interval is kept per GPU until a reset or reboot. Source: nvidia-smi(1) since R455; the values 0 to 3 are DEFAULT,
SHORT, MEDIUM and LONG.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.vendors.base import FailureKind, VendorError

_VALUES = {
    TimeSliceInterval.DEFAULT: "0",
    TimeSliceInterval.SHORT: "1",
    TimeSliceInterval.MEDIUM: "2",
    TimeSliceInterval.LONG: "3",
}
_ROW = re.compile(r"time.?slice\W+(default|short|medium|long)", re.IGNORECASE)
_MAX_OUTPUT = 400
_COLLECT_SECONDS = 2.0


class Smi:
    """nvidia-smi of a driver root, started once for each question."""

    def __init__(
        self, find: Callable[[], Path], library_directory: Callable[[], Path], *, timeout: float = 10.0
    ) -> None:
        """Remember how to find the program; a driver root may be replaced while this process runs.

        Args:
            find: returns the path of nvidia-smi as this process sees it; raises VendorError when there is none.
            library_directory: returns where its libnvidia-ml.so.1 lies.
            timeout: seconds that one call may take; a first call after a driver load takes some.
        """
        self._find = find
        self._library_directory = library_directory
        self._timeout = timeout

    async def set_time_slice(self, uuid: str, interval: TimeSliceInterval) -> None:
        """Set the time slice of a GPU.

        Raises:
            VendorError: UNSUPPORTED where the GPU has no time slices, else what nvidia-smi printed.
        """
        await self._run(uuid, "compute-policy", "-i", uuid, "--set-timeslice", _VALUES[interval])

    async def time_slice(self, uuid: str) -> TimeSliceInterval | None:
        """Read the time slice of a GPU, None when the output does not tell.

        Raises:
            VendorError: nvidia-smi failed.
        """
        output = await self._run(uuid, "compute-policy", "-i", uuid, "-l")
        row = _ROW.search(output)
        return None if row is None else TimeSliceInterval(row[1].capitalize())

    async def _run(self, uuid: str, *arguments: str) -> str:
        command = " ".join(("nvidia-smi", *arguments))
        program = self._find()
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(self._library_directory())},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise VendorError(
                FailureKind.TRANSIENT, f"GPU {uuid}: {program} cannot be started ({error}): check the driver root"
            ) from error
        try:
            async with asyncio.timeout(self._timeout):
                output, _ = await process.communicate()
        except TimeoutError as error:
            await _end(process)
            raise VendorError(
                FailureKind.UNRESPONSIVE, f"GPU {uuid}: `{command}` did not end within {self._timeout:g} s"
            ) from error
        except BaseException:
            await _end(process)
            raise
        text = output.decode(errors="replace").strip()
        if process.returncode == 0:
            return text
        kind = FailureKind.UNSUPPORTED if "not supported" in text.lower() else FailureKind.TRANSIENT
        remedy = "remove timeSlicingConfig from the claim" if kind is FailureKind.UNSUPPORTED else "see the kernel log"
        raise VendorError(
            kind, f"GPU {uuid}: `{command}` ended with {process.returncode}: {text[:_MAX_OUTPUT]!r}; {remedy}"
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the program and collect it; it may have ended by itself meanwhile.

    One that hangs in the kernel on a dead GPU cannot be killed; nobody waits for it longer than a moment.
    """
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_COLLECT_SECONDS):
            await process.wait()
