"""Amounts of a shareable device's capacities, as one value that is added, compared and said. Pure.

`computePercent` in percent of the SMs, `memory` in bytes, `clients` in processes, `nvlinkBandwidth` in bytes a second.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dra_gpu.api import quantity
from dra_gpu.inventory import capacities


@dataclass(frozen=True, slots=True)
class Amounts:
    """So much of each capacity; what is not there is 0. Differences may be negative."""

    compute_percent: int = 0
    memory: int = 0
    clients: int = 0
    nvlink_bandwidth: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return self._each(other, int.__add__)

    def __sub__(self, other: "Amounts") -> "Amounts":
        return self._each(other, int.__sub__)

    def __bool__(self) -> bool:
        return self != NOTHING

    def at_most(self, other: "Amounts") -> "Amounts":
        """Return the smaller of each."""
        return self._each(other, min)

    def at_least(self, other: "Amounts") -> "Amounts":
        """Return the larger of each."""
        return self._each(other, max)

    def within(self, other: "Amounts") -> bool:
        """Tell whether none of it is more than of the other."""
        return self.at_most(other) == self

    def wire(self, *, zeros: bool = False) -> dict[str, str]:
        """Return them as quantities by the names of the capacities; those of which there is nothing if asked for."""
        found = {name: amount for name, amount in self._named().items() if amount or zeros}
        return {
            name: quantity.format_bytes(amount) if name == capacities.MEMORY else str(amount)
            for name, amount in found.items()
        }

    def text(self) -> str:
        """Return them for people: `20 % of the SMs, 10Gi of memory`; `nothing` where there is none."""
        parts = []
        if self.compute_percent:
            parts.append(f"{self.compute_percent} % of the SMs")
        if self.memory:
            parts.append(f"{quantity.format_bytes(self.memory)} of memory")
        if self.clients:
            parts.append(f"{self.clients} client{'s' if self.clients != 1 else ''}")
        if self.nvlink_bandwidth:
            parts.append(f"{self.nvlink_bandwidth} bytes/s of NVLink bandwidth")
        return ", ".join(parts) or "nothing"

    def _each(self, other: "Amounts", of: Callable[[int, int], int]) -> "Amounts":
        return Amounts(
            of(self.compute_percent, other.compute_percent),
            of(self.memory, other.memory),
            of(self.clients, other.clients),
            of(self.nvlink_bandwidth, other.nvlink_bandwidth),
        )

    def _named(self) -> dict[str, int]:
        return {
            capacities.COMPUTE_PERCENT: self.compute_percent,
            capacities.MEMORY: self.memory,
            capacities.CLIENTS: self.clients,
            capacities.NVLINK_BANDWIDTH: self.nvlink_bandwidth,
        }


NOTHING = Amounts()


def parse(wire: Mapping[str, str | int], default: Amounts = NOTHING) -> Amounts:
    """Read amounts by the names of the capacities; unknown names are ignored, absent ones are the default's.

    Raises:
        InvalidQuantityError: one is no whole number; names it.
    """
    known = {capacities.COMPUTE_PERCENT, capacities.MEMORY, capacities.CLIENTS, capacities.NVLINK_BANDWIDTH}
    found = {name: quantity.parse_int(str(text)) for name, text in wire.items() if name in known}
    return Amounts(
        found.get(capacities.COMPUTE_PERCENT, default.compute_percent),
        found.get(capacities.MEMORY, default.memory),
        found.get(capacities.CLIENTS, default.clients),
        found.get(capacities.NVLINK_BANDWIDTH, default.nvlink_bandwidth),
    )
