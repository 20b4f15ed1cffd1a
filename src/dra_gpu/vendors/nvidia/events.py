"""NVML's event sets: what happened to GPUs since they were registered. Everything here blocks; NVML must be open.

Source: NVML API reference r580, "Event Types" and "Event Handling Methods": a GPU that does not know one of the types
asked for is not registered at all, and the set stays usable; a wait ends by an event, by its timeout, or with
NVML_ERROR_GPU_IS_LOST when a registered GPU is gone, at once and as often as one waits.
"""

import ctypes
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from dra_gpu.vendors.base import VendorError
from dra_gpu.vendors.health import HealthEvent, HealthEventKind
from dra_gpu.vendors.nvidia.nvml import failure
from dra_gpu.vendors.nvidia.queries import optional, text

# What is asked for, and what each is. A corrected error is no event of health; a corrected one that becomes many is.
_KINDS = {
    pynvml.nvmlEventTypeXidCriticalError: (HealthEventKind.XID, ""),
    pynvml.nvmlEventTypeDoubleBitEccError: (HealthEventKind.ECC, "an uncorrectable memory error"),
    pynvml.nvmlEventTypeDramRetirementFailure: (HealthEventKind.ECC, "memory could not be retired"),
    pynvml.nvmlEventTypeFatalPoisonError: (HealthEventKind.ECC, "poisoned data that was not contained"),
    pynvml.nvmlEventTypeGpuUnavailableError: (HealthEventKind.RECOVERY_ACTION, "the GPU has become unavailable"),
    pynvml.nvmlEventTypeGpuRecoveryAction: (HealthEventKind.RECOVERY_ACTION, "another recovery action"),
}
_WANTED = sum(_KINDS)
_NO_INSTANCE = 0xFFFFFFFF
# What one wait takes at most: a GPU that reports without end does not keep the others' events from being told.
_MOST = 1024
_MOST_WAITS = 64  # for what a set has left when it goes


class LostGpuError(Exception):
    """A wait says that a registered GPU is lost; it does not say which."""


def count() -> int:
    """Return the number of GPUs that NVML lists; none where it does not tell."""
    return int(optional(pynvml.nvmlDeviceGetCount) or 0)


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU that NVML lists.

    Attributes:
        uuid: its identity; empty where it is lost.
        handle: by which NVML knows it.
        types: the events that it reports.
        ends_waits: it answers, and a wait for it alone says that it is lost.
        happened: what was reported when it was waited for alone.
    """

    uuid: str = ""
    handle: Any = None
    types: int = 0
    ends_waits: bool = False
    happened: Sequence[HealthEvent] = ()


def see(index: int, suspects: Collection[str]) -> Seen:
    """Return the GPU at an index.

    Args:
        index: of NVML.
        suspects: UUIDs of those that are to be waited for alone, without waiting long: one that is lost ends every wait
            of the set it is in, and may answer other calls all the same.
    """
    handle = optional(pynvml.nvmlDeviceGetHandleByIndex, index)
    uuid = None if handle is None else text(optional(pynvml.nvmlDeviceGetUUID, handle))
    if not uuid:
        return Seen()
    seen = Seen(uuid, handle, (optional(pynvml.nvmlDeviceGetSupportedEventTypes, handle) or 0) & _WANTED)
    if uuid not in suspects:
        return seen
    alone = EventSet()
    try:
        alone.register(seen)
        return replace(seen, happened=alone.wait(0))
    except LostGpuError:
        return replace(seen, ends_waits=True)
    finally:
        alone.close()


class EventSet:
    """One event set. Used by one thread at a time.

    Attributes:
        watched: UUIDs of the GPUs that are registered.
    """

    def __init__(self) -> None:
        """Make an empty set.

        Raises:
            VendorError: NVML cannot.
        """
        self.watched: tuple[str, ...] = ()
        self._uuids: dict[int, str] = {}
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except (pynvml.NVMLError, AttributeError) as error:
            raise failure("NVML", "nvmlEventSetCreate", error) from error

    def register(self, gpu: Seen) -> None:
        """Register one GPU; one that reports no events is left out."""
        if not gpu.types:
            return
        with suppress(pynvml.NVMLError, AttributeError):
            pynvml.nvmlDeviceRegisterEvents(gpu.handle, gpu.types, self._set)
            self.watched = (*self.watched, gpu.uuid)
            self._uuids[_value(gpu.handle)] = gpu.uuid

    def wait(self, milliseconds: int) -> list[HealthEvent]:
        """Return what has happened, as soon as something has; nothing after the time given.

        What happened several times is told once, with how often: a GPU may report ten thousand errors a second.

        Raises:
            LostGpuError: a registered GPU is lost, and nothing else has happened.
            VendorError: NVML does not wait.
        """
        found: Counter[HealthEvent] = Counter()  # in the order in which each happened first
        for turn in range(_MOST):
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, 0 if turn else milliseconds)
            except (pynvml.NVMLError, AttributeError) as error:
                code = getattr(error, "value", None)
                if found or code == pynvml.NVML_ERROR_TIMEOUT:
                    break  # what ends this wait ends the next one, too
                if code == pynvml.NVML_ERROR_GPU_IS_LOST:
                    raise LostGpuError from error
                raise failure("NVML", "nvmlEventSetWait_v2", error) from error
            event = self._event(data)
            if event is not None:
                found[event] += 1
        return _told(found)

    def _event(self, data: Any) -> HealthEvent | None:
        uuid = self._uuids.get(_value(data.device)) or text(optional(pynvml.nvmlDeviceGetUUID, data.device))
        known = _KINDS.get(int(data.eventType))
        if uuid is None or known is None:
            return None
        kind, detail = known
        return HealthEvent(
            uuid,
            kind,
            xid=int(data.eventData) if kind is HealthEventKind.XID else None,
            gpu_instance=_instance(data.gpuInstanceId),
            compute_instance=_instance(data.computeInstanceId),
            detail=detail,
        )

    def rest(self) -> list[HealthEvent]:
        """Return what has happened and was not told yet, without waiting; a set that is spoilt has its events, too."""
        found: Counter[HealthEvent] = Counter()
        with suppress(LostGpuError, VendorError):
            for _ in range(_MOST_WAITS):
                more = _counted(self.wait(0))
                if not more:
                    break
                found += more
        return _told(found)

    def close(self) -> None:
        """Give the set up."""
        optional(pynvml.nvmlEventSetFree, self._set)


def handed_over(former: EventSet, following: EventSet) -> list[HealthEvent]:
    """Return what two sets have to tell, of which the second has taken over from the first: each thing once.

    What has happened since the second one was made is in both.
    """
    told, later = _counted(former.rest()), _counted(following.rest())
    return _told(told | later)


def _counted(events: Sequence[HealthEvent]) -> Counter[HealthEvent]:
    return Counter({replace(event, count=1): event.count for event in events})


def _told(found: Counter[HealthEvent]) -> list[HealthEvent]:
    return [replace(event, count=count) for event, count in found.items()]


def _value(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)
