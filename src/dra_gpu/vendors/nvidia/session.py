"""A hold of NVML that several may share, and that outlasts a call that hangs: shutting NVML down then would hang, too.

Promises: whoever is inside has NVML open; whoever leaves last gives up what was opened, once.
"""

import asyncio
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
    """Opens NVML for whoever comes first, and closes it behind the last. Used from one event loop.

    Args:
        nvml: the library of this process.
        watchdog: by which all blocking calls of this process run.
    """

    def __init__(self, nvml: Nvml, watchdog: Watchdog) -> None:
        self._nvml = nvml
        self._watchdog = watchdog
        self._is_open = False
        self._users = 0
        self._turn = asyncio.Lock()  # who comes waits for who is opening or closing it

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have NVML open for as long as the block lasts, and longer while any call hangs in it.

        Raises:
            VendorError: it cannot be opened. That it cannot be closed is found by the next user.
        """
        self._users += 1
        try:
            async with self._turn:
                if not self._is_open:
                    await self._watchdog.call("NVML", "nvmlInit_v2", self._open, _INITIALISE_SECONDS)
            yield
        finally:
            self._users -= 1
            if self._is_last:
                async with self._turn:
                    if self._is_last:
                        with suppress(VendorError):
                            await self._watchdog.call("NVML", "nvmlShutdown", self._close, _SHUT_DOWN_SECONDS)

    @property
    def _is_last(self) -> bool:
        return self._is_open and not self._users and not self._watchdog.stuck

    def _open(self) -> None:
        self._nvml.open()
        self._is_open = True  # here, since the caller may be gone by now

    def _close(self) -> None:
        self._is_open = False
        self._nvml.close()
