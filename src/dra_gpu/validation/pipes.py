"""How many devices of a claim would be shared by MPS: a container follows one MPS daemon and sees its device alone."""

from collections.abc import Iterator, Sequence

from dra_gpu.api.dra_gpu_v1alpha1 import SharedGpuConfig, SharedStrategy
from dra_gpu.api.opaque import AnyConfig
from dra_gpu.validation.configs import Entry, governing, mps_of
from dra_gpu.validation.problem import Problem, warning
from dra_gpu.validation.requests import Wanted

_MANY = 2  # all of a node: one, or more
_REMEDY = (
    "make a claim of its own for each (count: 1, one request) and give each container one of them, or share by "
    "strategy TimeSlicing"
)


def check(requests: Sequence[Sequence[Wanted]], entries: Sequence[Entry]) -> Iterator[Problem]:
    """Yield a problem where a claim would have, or could have, several devices on MPS."""
    least = most = 0
    for ways in requests:
        counts = [_on_mps(way, entries) for way in ways]
        least += min((low for low, _ in counts), default=0)
        high = max((high for _, high in counts), default=0)
        most += high
        if high and most > 1:
            way = ways[max(range(len(ways)), key=lambda index: counts[index][1])]
            field = f"{way.path}.{_field(way)}"
            if least > 1:
                reason = (
                    f"makes {most} devices of this claim shared by MPS, and a container follows one MPS daemon only"
                )
                yield Problem(field, reason, _REMEDY)
            else:
                reason = (
                    "may give this claim several devices shared by MPS, and a container follows one MPS daemon only"
                )
                yield warning(field, reason, _REMEDY)
            return


def mixed(requests: Sequence[Sequence[Wanted]], entries: Sequence[Entry]) -> Iterator[Problem]:
    """Yield a warning where shares of a claim could be of one GPU and have strategies that exclude each other."""
    first: dict[object, bool] = {}
    for ways in requests:
        for way in ways:
            if way.facts is None or not way.facts.shared or way.admin:
                continue
            sliced = not _by_mps(governing(way, entries))
            if first.setdefault(way.facts.view, sliced) is not sliced:
                yield warning(
                    f"{way.path}.deviceClassName",
                    "may bring a share of a GPU of which this claim has another one, by MPS the one and by time slices "
                    "the other, which cannot be mixed on one GPU",
                    "give both the same strategy, or a claim of its own to each",
                )
                return


def _field(way: Wanted) -> str:
    if way.count is None:
        return "allocationMode"
    return "count" if way.count > 1 else "deviceClassName"


def _by_mps(config: AnyConfig | None) -> bool:
    """Tell whether a share is had by MPS, where the GPU can."""
    return not isinstance(config, SharedGpuConfig) or config.strategy is not SharedStrategy.TIME_SLICING


def _on_mps(way: Wanted, entries: Sequence[Entry]) -> tuple[int, int]:
    """Return how many devices on MPS an alternative brings, at least and at most."""
    if way.facts is None or way.admin:
        return 0, 0
    config = governing(way, entries)
    mps = _by_mps(config) if way.facts.shared else mps_of(config) is not None
    if not mps:
        return 0, 0
    return (1, _MANY) if way.count is None else (way.count, way.count)
