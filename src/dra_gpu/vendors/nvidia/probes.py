"""Looks at the health of all GPUs, each in a thread of its own, so that none hides the others."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from dra_gpu.inventory.model import Gpu
from dra_gpu.vendors.base import FailureKind, VendorError
from dra_gpu.vendors.health import HealthProbe
from dra_gpu.vendors.nvidia import health
from dra_gpu.vendors.nvidia.nvml import Nvml
from dra_gpu.vendors.nvidia.presence import Presence
from dra_gpu.vendors.nvidia.session import Session
from dra_gpu.vendors.watchdog import Watchdog

# A healthy GPU answers in milliseconds; one that is being reset takes seconds.
_SECONDS = 15.0


class Probes:
    """Looks at GPUs.

    Args:
        nvml: the library of this process.
        watchdog: by which blocking calls run.
        presence: what the kernel driver has.
    """

    def __init__(self, nvml: Nvml, watchdog: Watchdog, presence: Presence) -> None:
        self._session = Session(nvml, watchdog)
        self._watchdog = watchdog
        self._presence = presence

    async def of(self, gpus: Sequence[Gpu]) -> tuple[HealthProbe, ...]:
        """See `vendors.base.Vendor.probe_health`."""
        try:
            async with self._session.opened():
                return tuple(await asyncio.gather(*(self._probe(gpu) for gpu in gpus)))
        except VendorError as error:  # of opening it, which says nothing about any one of them
            silent = error.kind is FailureKind.UNRESPONSIVE
            return tuple(HealthProbe(gpu.uuid, unresponsive=silent, problem=str(error)) for gpu in gpus)

    async def _probe(self, gpu: Gpu) -> HealthProbe:
        try:
            found = await self._watchdog.call(
                f"GPU {gpu.index}", "looking at its health", lambda: health.probe(gpu), _SECONDS
            )
        except VendorError as error:
            silent = error.kind is FailureKind.UNRESPONSIVE
            return HealthProbe(gpu.uuid, lost=error.kind is FailureKind.LOST, unresponsive=silent, problem=str(error))
        except Exception as error:  # noqa: BLE001 - whatever a GPU's answers break costs that GPU alone
            return HealthProbe(gpu.uuid, problem=f"GPU {gpu.uuid}: its health cannot be read ({error!r})")
        return replace(found, reset_mark=self._presence.reset_mark(gpu.pci_address))
