"""What the service decides: the protocol of a GPU, and what sets a namespace's limits right. Pure.

Source: MPS documentation r615, "MPS v3 Namespaces", and MIG User Guide r580 (EXCLUSIVE_PROCESS does not go with MIG;
one control daemon for each compute instance).
"""

import re
from collections.abc import Collection, Iterable

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.output import Namespace
from dra_gpu.mps.service import MAX_NAME, Limits, MpsError, MpsErrorKind
from dra_gpu.mps.state import ShareState
from dra_gpu.vendors.nvidia.compute_mode import SharingFacts

#: The namespace that a server has by itself; no container reaches it.
DEFAULT_NAMESPACE = "default"

_GPU = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_NAME = re.compile(rf"[a-z0-9_]{{1,{MAX_NAME}}}", re.ASCII)
_MIB = 2**20
_WHOLE = 100


def protocol(uuid: str, facts: SharingFacts) -> MpsProtocol:
    """Choose how shares of a GPU are limited.

    Raises:
        MpsError: UNSUPPORTED: MPS does not limit clients of this GPU, or it is partitioned.
    """
    if facts.partitioned:
        raise MpsError(
            MpsErrorKind.UNSUPPORTED,
            f"GPU {uuid} is in MIG mode, in which MPS cannot hold the whole GPU: share its partitions, or turn MIG off",
        )
    if facts.protocol is None:
        raise MpsError(
            MpsErrorKind.UNSUPPORTED,
            f"GPU {uuid} is older than Volta, and MPS does not limit its clients: use strategy TimeSlicing",
        )
    return facts.protocol


def check(uuid: str, name: str | None = None, limits: Limits | None = None) -> None:
    """Check what a caller sent: it becomes part of paths and command lines.

    Raises:
        MpsError: UNSUPPORTED, with the form it should have.
    """
    reason = ""
    if _GPU.fullmatch(uuid) is None:
        reason = f"{uuid!r} is no UUID of a GPU or partition (GPU-01234567-89ab-cdef-0123-456789abcdef)"
    elif name is not None and (_NAME.fullmatch(name) is None or name == DEFAULT_NAMESPACE):
        reason = f"{name!r} is no name of a share: 1 to {MAX_NAME} of a-z, 0-9 and _, and not {DEFAULT_NAMESPACE!r}"
    elif limits is not None:
        percent, memory = limits.compute_percent, limits.memory_bytes
        if percent is not None and not 1 <= percent <= _WHOLE:
            reason = f"computePercent {percent} must be 1 to {_WHOLE}"
        elif memory is not None and memory < _MIB:
            reason = f"memory {memory} must be at least 1 MiB"
    if reason:
        raise MpsError(MpsErrorKind.UNSUPPORTED, f"MPS: {reason}")


def settings(limits: Limits, found: Namespace | None, memory_total: int | None) -> tuple[str, ...]:
    """Return the options of `namespace set` that turn what is found into the limits; none where it agrees.

    Args:
        limits: wanted.
        found: as the daemon lists it; None for a namespace just made, which has no limits.
        memory_total: the GPU's memory in bytes. A limit that was set has no documented way back to "none"; the whole
            GPU says the same.
    """
    options = []
    percent = limits.compute_percent or _WHOLE
    if percent != (_WHOLE if found is None or found.percent is None else found.percent):
        options.append(f"--active-thread-percentage={percent}")
    present = None if found is None else found.memory_bytes
    wanted = limits.memory_bytes if limits.memory_bytes is not None else (present and memory_total)
    if wanted is not None and wanted // _MIB != (present or 0) // _MIB:
        options.append(f"--pinned-memory-limit={wanted // _MIB}M")
    if limits.low_priority != (found is not None and found.low_priority):
        options.append(f"--client-priority={int(limits.low_priority)}")
    return tuple(options)


def adopted(found: Iterable[Namespace], server: str) -> dict[str, ShareState]:
    """Return the shares behind the namespaces of a daemon that was found running, with the limits they have."""
    return {
        namespace.name: ShareState(
            Limits(
                None if namespace.percent is None else max(1, int(namespace.percent)),
                namespace.memory_bytes,
                namespace.low_priority,
            )
        )
        for namespace in found
        if namespace.server == server and namespace.name != DEFAULT_NAMESPACE
    }


def leftovers(found: Iterable[Namespace], server: str, wanted: Collection[str]) -> tuple[str, ...]:
    """Return the namespaces that nobody wants any more."""
    return tuple(
        namespace.name
        for namespace in found
        if namespace.server == server and namespace.name != DEFAULT_NAMESPACE and namespace.name not in wanted
    )
