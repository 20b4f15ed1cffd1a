"""What is wrong with a ClaimResize before there is a claim to compare it with: fields, amounts, and what excludes what.

The definition of the kind says the same to the API server (`crds.py`); this says it of a file, and what to write.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from dra_gpu.api import dra_gpu_v1alpha1, nvidia_v1beta1, quantity, strict
from dra_gpu.api.config_error import FieldProblem, InvalidConfigError
from dra_gpu.api.nvidia_v1beta1 import Percent, TimeSliceInterval
from dra_gpu.api.quantity import Quantity
from dra_gpu.api.strict import Strict
from dra_gpu.inventory import capacities

_GIBI = 2**30
_WHOLE = 100
#: The least and the most of each capacity, and how that is said.
_LIMITS: Mapping[str, tuple[int, int | None, str]] = {
    capacities.COMPUTE_PERCENT: (1, _WHOLE, "a whole percentage of the SMs from 1 to 100"),
    capacities.MEMORY: (_GIBI, None, "at least 1Gi, such as 20Gi"),
    capacities.CLIENTS: (1, None, "a number of processes, at least 1"),
    capacities.NVLINK_BANDWIDTH: (0, None, "a number of bytes per second"),
}


class ResizeMpsSettings(Strict, frozen=True):
    """Limits of each process on a whole GPU or partition that a claim shares among its containers by MPS.

    Attributes:
        active_thread_percentage: percent of the SMs, 1 to 100; without it, it stays as it is.
        pinned_device_memory_limit: at least 1Mi; without it, it stays as it is.
    """

    active_thread_percentage: Percent | None = None
    pinned_device_memory_limit: Quantity | None = None


class ResizeSpec(Strict, frozen=True):
    """What is wanted. What is not named here is wanted as the claim was allocated it.

    Attributes:
        request: name of the request of the claim, `main` or `main/sub`; needed where the claim has several devices.
        capacity: wanted amounts of a share, by the names of its capacities: computePercent, memory, clients,
            nvlinkBandwidth.
        time_slice: of a whole GPU that the claim shares among its containers by time slices.
        mps: of a whole GPU or partition that the claim shares among its containers by MPS.
    """

    request: str | None = None
    capacity: dict[str, Quantity] | None = None
    time_slice: TimeSliceInterval | None = None
    mps: ResizeMpsSettings | None = None


class ClaimResizeManifest(Strict, frozen=True, tag_field="kind", tag="ClaimResize"):
    """How much an allocated ResourceClaim should have while its pods run; it has the name of the claim."""

    spec: ResizeSpec
    api_version: Literal["resource.dra-gpu.dev/v1alpha1"] = msgspec.field(
        name="apiVersion", default=dra_gpu_v1alpha1.API_VERSION
    )
    metadata: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


def check(document: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Yield what is wrong with a ClaimResize."""
    try:
        spec = strict.convert(document, ClaimResizeManifest).spec
    except InvalidConfigError as error:
        yield from error.problems
        return
    for name, amount in (spec.capacity or {}).items():
        yield from _amount(name, amount)
    if spec.capacity and (spec.time_slice is not None or spec.mps is not None):
        yield FieldProblem(
            "spec.capacity",
            "is of a share, and timeSlice and mps are of a whole GPU or partition: a device is one of them",
            "keep one of them",
        )
    if spec.mps is not None:
        yield from _mps(spec.mps)
        if spec.time_slice is not None:
            yield FieldProblem(
                "spec.mps", "stands beside timeSlice: a GPU is shared by one of them", "keep one of them"
            )


def _amount(name: str, amount: str) -> Iterator[FieldProblem]:
    field = f"spec.capacity[{name[:80]!r}]"
    if name not in _LIMITS:
        yield FieldProblem(field, "is no capacity of a share", f"write one of {', '.join(_LIMITS)}")
        return
    least, most, text = _LIMITS[name]
    try:
        value = quantity.parse(amount)
    except quantity.InvalidQuantityError:
        yield FieldProblem(field, f"is {amount[:40]!r}, which is no quantity", f"write {text}")
        return
    if value.denominator != 1 or value < least or (most is not None and value > most):
        yield FieldProblem(field, f"is {amount[:40]}", f"write {text}")


def _mps(settings: ResizeMpsSettings) -> Iterator[FieldProblem]:
    percent, limit = settings.active_thread_percentage, settings.pinned_device_memory_limit
    if percent is not None and not 1 <= percent <= _WHOLE:
        yield FieldProblem("spec.mps.activeThreadPercentage", f"is {percent}", "write a whole percentage from 1 to 100")
    if limit is not None:
        try:
            nvidia_v1beta1.pinned_limit("spec.mps.pinnedDeviceMemoryLimit", limit)
        except InvalidConfigError as error:
            yield from error.problems
