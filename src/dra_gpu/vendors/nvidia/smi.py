"""Time slices and resets by nvidia-smi: NVML has no calls for them.

A time slice is kept per GPU until a reset or reboot. Source: nvidia-smi(1) since R455; the values 0 to 3 are DEFAULT,
SHORT, MEDIUM and LONG.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.vendors.base import FailureKind, VendorError

_VALUES = {
    TimeSliceInterval.DEFAULT: "0",
    TimeSliceInterval.SHORT: "1",
    TimeSliceInterval.MEDIUM: "2",
    TimeSliceInterval.LONG: "3",
}
_SLICE_REMEDIES = {FailureKind.UNSUPPORTED: "remove timeSlicingConfig from the claim"}
_RESET_REMEDIES = {
    FailureKind.UNSUPPORTED: "reboot the node; a GPU of a virtual machine is reset by its host",
    FailureKind.IN_USE: "end whoever uses it (`fuser -v /dev/nvidia*` on the node), then reset it again",
}
# What nvidia-smi prints, as it has no codes that tell them apart.
_WORDS = (
    (FailureKind.UNSUPPORTED, re.compile(r"not supported", re.IGNORECASE)),
    (FailureKind.IN_USE, re.compile(r"being used by|in use", re.IGNORECASE)),
)
_ROW = re.compile(r"time.?slice\W+(default|short|medium|long)", re.IGNORECASE)
_MAX_OUTPUT = 400
_COLLECT_SECONDS = 2.0
# A reset trains links and memory anew: seconds on one GPU, more where switches are involved.
_RESET_SECONDS = 120.0


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
        arguments = ("compute-policy", "-i", uuid, "--set-timeslice", _VALUES[interval])
        await self._run(uuid, *arguments, remedies=_SLICE_REMEDIES)

    async def time_slice(self, uuid: str) -> TimeSliceInterval | None:
        """Read the time slice of a GPU, None when the output does not tell.

        Raises:
            VendorError: nvidia-smi failed.
        """
        output = await self._run(uuid, "compute-policy", "-i", uuid, "-l", remedies=_SLICE_REMEDIES)
        row = _ROW.search(output)
        return None if row is None else TimeSliceInterval(row[1].capitalize())

    async def reset(self, uuid: str, where: str) -> None:
        """Reset a GPU that nobody has open.

        Args:
            uuid: the GPU, for messages.
            where: its PCI address, by which it is found even if it is lost; its UUID where it has none.

        Raises:
            VendorError: IN_USE, UNSUPPORTED, or whatever else nvidia-smi printed.
        """
        await self._run(uuid, "--gpu-reset", "-i", where, seconds=_RESET_SECONDS, remedies=_RESET_REMEDIES)

    async def _run(
        self, uuid: str, *arguments: str, remedies: Mapping[FailureKind, str], seconds: float | None = None
    ) -> str:
        limit = self._timeout if seconds is None else seconds
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
            async with asyncio.timeout(limit):
                output, _ = await process.communicate()
        except TimeoutError as error:
            await _end(process)
            raise VendorError(
                FailureKind.UNRESPONSIVE, f"GPU {uuid}: `{command}` did not end within {limit:g} s"
            ) from error
        except BaseException:
            await _end(process)
            raise
        text = output.decode(errors="replace").strip()
        if process.returncode == 0:
            return text
        kind = next((kind for kind, words in _WORDS if kind in remedies and words.search(text)), FailureKind.TRANSIENT)
        remedy = remedies.get(kind, "see the kernel log")
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
