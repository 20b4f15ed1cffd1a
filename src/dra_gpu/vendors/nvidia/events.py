"""NVML's event sets: what happened to GPUs since they were registered. Everything here blocks; NVML must be open.

Source: NVML API reference r580, "Event Types" and "Event Handling Methods": a GPU that does not know one of the types
asked for is not registered at all, and the set stays usable; a wait ends by an event, by its timeout, or with
NVML_ERROR_GPU_IS_LOST when a registered GPU is gone, at once and as often as one waits.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
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
# What one wait hands on at most: a GPU that reports without end does not keep the others' events from being told.
_MOST = 64


class LostGpuError(Exception):
    """A wait says that a registered GPU is lost; it does not say which."""


class EventSet:
    """One event set. Used by one thread at a time.

    Attributes:
        watched: UUIDs of the GPUs that are registered.
        lost: UUIDs of those that were wanted and are lost.
        answering: UUIDs of those among the lost that answer all the same: only a wait for them says it.
    """

    def __init__(self) -> None:
        """Make an empty set.

        Raises:
            VendorError: NVML cannot.
        """
        self.watched: tuple[str, ...] = ()
        self.lost: frozenset[str] = frozenset()
        self.answering: frozenset[str] = frozenset()
        self._uuids: dict[int, str] = {}
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except (pynvml.NVMLError, AttributeError) as error:
            raise failure("NVML", "nvmlEventSetCreate", error) from error

    def add(self, wanted: Collection[str], report: Callable[[HealthEvent], None], *, careful: bool) -> None:
        """Register GPUs, as far as they report events; those that are there already stay.

        Args:
            wanted: UUIDs. What NVML does not list, or what is lost, is in `lost` afterwards.
            report: told what happens meanwhile to those that are waited for alone.
            careful: wait for each alone before: one that is lost ends every wait of the set it is in, and may answer
                other calls all the same.
        """
        missing, answering = set(wanted) - set(self.watched), set()
        for uuid, handle in _handles():
            if uuid not in missing:
                continue
            if careful and _ends_waits(uuid, handle, report):
                answering.add(uuid)
                continue
            missing.discard(uuid)
            self.register(uuid, handle)
        self.lost, self.answering = frozenset(missing), frozenset(answering)

    def register(self, uuid: str, handle: Any) -> None:
        """Register one GPU by its handle; one that reports no events is left out."""
        types = optional(pynvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
        if not types & _WANTED:
            return
        with suppress(pynvml.NVMLError, AttributeError):
            pynvml.nvmlDeviceRegisterEvents(handle, types & _WANTED, self._set)
            self.watched = (*self.watched, uuid)
            self._uuids[_value(handle)] = uuid

    def wait(self, milliseconds: int) -> list[HealthEvent]:
        """Return what has happened, as soon as something has; nothing after the time given.

        Raises:
            LostGpuError: a registered GPU is lost, and nothing else has happened.
            VendorError: NVML does not wait.
        """
        found: list[HealthEvent] = []
        while len(found) < _MOST:
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, 0 if found else milliseconds)
            except (pynvml.NVMLError, AttributeError) as error:
                code = getattr(error, "value", None)
                if found or code == pynvml.NVML_ERROR_TIMEOUT:
                    break  # what ends this wait ends the next one, too
                if code == pynvml.NVML_ERROR_GPU_IS_LOST:
                    raise LostGpuError from error
                raise failure("NVML", "nvmlEventSetWait_v2", error) from error
            event = self._event(data)
            if event is not None:
                found.append(event)
        return found

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
        try:
            return self.wait(0)
        except (LostGpuError, VendorError):
            return []

    def close(self) -> None:
        """Give the set up."""
        optional(pynvml.nvmlEventSetFree, self._set)


def handed_over(former: EventSet, following: EventSet) -> list[HealthEvent]:
    """Return what two sets have to tell, of which the second has taken over from the first: each thing once.

    What has happened since the second one was made is in both.
    """
    told = former.rest()
    known = Counter(told)
    for event in following.rest():
        if known[event]:
            known[event] -= 1
        else:
            told.append(event)
    return told


def _ends_waits(uuid: str, handle: Any, report: Callable[[HealthEvent], None]) -> bool:
    alone = EventSet()
    try:
        alone.register(uuid, handle)
        for event in alone.wait(0):
            report(event)
    except LostGpuError:
        return True
    finally:
        alone.close()
    return False


def _handles() -> Iterator[tuple[str, Any]]:
    for index in range(optional(pynvml.nvmlDeviceGetCount) or 0):
        handle = optional(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = None if handle is None else text(optional(pynvml.nvmlDeviceGetUUID, handle))
        if uuid:
            yield uuid, handle


def _value(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)
