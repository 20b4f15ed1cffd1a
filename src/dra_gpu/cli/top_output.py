"""How the use of GPUs is shown: a table for people, JSON for machines. Pure."""

import msgspec

from dra_gpu.cli.tables import table
from dra_gpu.cli.top import ClaimUse, GpuUse, Seen

_REASONS = {
    "mig": "not told of partitions",
    "unsupported": "not told by this GPU",
    "shared-pod": "several claims of one pod",
    "unknown-pod": "not told yet",
    "gpu": "the GPU does not answer",
    "node": "the node does not tell",
}
_GIB = 2**30


def as_json(seen: Seen) -> str:
    """Return it for machines."""
    return msgspec.json.format(msgspec.json.encode({"gpus": seen.gpus}), indent=2).decode()


def as_table(seen: Seen) -> str:
    """Return one line for each claim on each GPU, and one for a GPU that nobody has."""
    rows = []
    for gpu in seen.gpus:
        total = f"{_amount(gpu.memory_used)} / {_amount(gpu.memory)}"
        if not gpu.claims:
            rows.append([gpu.node, gpu.name, total, "-", "-", "-", "-"])
        for number, claim in enumerate(gpu.claims):
            first = [gpu.node, gpu.name, total] if number == 0 else ["", "", ""]
            rows.append([*first, claim.claim, _sm(claim), _memory(claim), ", ".join(claim.devices)])
        if gpu.unattributed:
            rows.append(["", "", "", "(no claim)", "-", _amount(gpu.unattributed), "-"])
    return table(["NODE", "GPU", "GPU MEMORY", "CLAIM", "SMS", "MEMORY", "DEVICE"], rows)


def _sm(claim: ClaimUse) -> str:
    limit = f" / {claim.sm_limit_percent} %" if claim.sm_limit_percent is not None else ""
    if claim.sm_percent is None:
        return f"({_why(claim, 'sm')}){limit}"
    return f"{claim.sm_percent:g} %{limit}"


def _memory(claim: ClaimUse) -> str:
    limit = f" / {_amount(claim.memory_limit)}" if claim.memory_limit is not None else ""
    if claim.memory_used is None:
        return f"({_why(claim, 'memory')}){limit}"
    return f"{_amount(claim.memory_used)}{limit}"


def _why(claim: ClaimUse, what: str) -> str:
    reason = claim.unavailable.get(what, "")
    return _REASONS.get(reason, reason or "not told yet")


def _amount(value: int | None) -> str:
    return "-" if value is None else f"{value / _GIB:.1f}Gi"


def nothing_found(seen: list[GpuUse], node: str) -> str:
    """Say for people why nothing is shown; empty when something is."""
    if seen:
        return ""
    where = f" on node {node!r}" if node else ""
    return f"No GPU is published{where}: is the driver installed, and does a node plugin run?"
