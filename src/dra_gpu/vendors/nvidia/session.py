"""One user's hold of NVML, which outlasts a call that hangs: shutting NVML down then would hang as well."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from dra_gpu.vendors.base import VendorError
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.watchdog import Watchdog

# NVML's first initialisation takes seconds per GPU without the persistence daemon.
_INITIALISE_SECONDS = 60.0
# What was asked is told only after it.
_SHUT_DOWN_SECONDS = 5.0


class Session:
    """Opens NVML for one user at a time.

    Args:
        nvml: the library of this process.
        watchdog: by which all blocking calls of this process run.
    """

    def __init__(self, nvml: Nvml, watchdog: Watchdog) -> None:
        self._nvml = nvml
        self._watchdog = watchdog
        self._is_open = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have NVML open for as long as the block lasts, and longer while any call hangs in it.

        Raises:
            VendorError: it cannot be opened. That it cannot be closed is found by the next user.
        """
        try:
            if not self._is_open:
                await self._watchdog.call("NVML", "nvmlInit_v2", self._open, _INITIALISE_SECONDS)
            yield
        finally:
            if self._is_open and not self._watchdog.stuck:
                with suppress(VendorError):
                    await self._watchdog.call("NVML", "nvmlShutdown", self._close, _SHUT_DOWN_SECONDS)

    def _open(self) -> None:
        self._nvml.open()
        self._is_open = True  # here, since the caller may be gone by now

    def _close(self) -> None:
        self._is_open = False
        self._nvml.close()
