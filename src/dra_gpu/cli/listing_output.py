"""How listed GPUs are shown: a table for people, JSON and YAML for machines."""

import enum

import msgspec

from dra_gpu.api import quantity
from dra_gpu.cli.listing import DRIVER, Holder, ListedGpu, free
from dra_gpu.cli.tables import table
from dra_gpu.inventory import capacities


class Format(enum.Enum):
    """What `-o` takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def render(gpus: list[ListedGpu], form: Format) -> str:
    """Return the GPUs in a format."""
    match form:
        case Format.TABLE | Format.WIDE:
            return _as_table(gpus, wide=form is Format.WIDE)
        case Format.JSON:
            return msgspec.json.format(msgspec.json.encode({"gpus": gpus}), indent=2).decode()
        case Format.YAML:
            return msgspec.yaml.encode({"gpus": gpus}).decode().rstrip()


def _as_table(gpus: list[ListedGpu], *, wide: bool) -> str:
    if not gpus:
        return f"No GPU is published by {DRIVER}: is the driver installed, and is a node plugin running?"
    header = ["NODE", "GPU", "PRODUCT", "MEMORY", "FREE", "HELD BY", "WHAT ENFORCES IT", "HEALTH"]
    wide_header = ["ISOLATION", "VIEWS", "PCI", "UUID"]
    rows = []
    for gpu in gpus:
        row = [
            gpu.node,
            gpu.name,
            gpu.product,
            gpu.memory,
            _free(gpu),
            "\n".join(_held(holder) for holder in gpu.holders) or "-",
            "\n".join(_enforced(holder) for holder in gpu.holders) or "-",
            gpu.health,
        ]
        rows.append([*row, gpu.isolation, ", ".join(gpu.views), gpu.pci, gpu.uuid] if wide else row)
    return table([*header, *wide_header] if wide else header, rows)


def _free(gpu: ListedGpu) -> str:
    percent, memory = free(gpu)
    if percent == 0 and not memory:
        return "-"
    return f"{percent} %" if memory is None else f"{percent} %, {quantity.format_bytes(memory)}"


def _held(holder: Holder) -> str:
    if holder.admin:
        return f"{holder.claim} (admin)"
    percent = holder.capacities.get(capacities.COMPUTE_PERCENT)
    if percent is None:
        return f"{holder.claim} (whole)"
    return f"{holder.claim} ({percent} %, {holder.capacities.get(capacities.MEMORY, '-')})"


def _enforced(holder: Holder) -> str:
    """Say what limits SMs and memory of a share; a whole GPU needs no limit, and a watcher has none."""
    if holder.admin:
        return "-"
    if not holder.mechanisms:
        return "not said yet" if holder.share else "-"
    names = {"SMs": capacities.COMPUTE_PERCENT, "memory": capacities.MEMORY}
    return ", ".join(f"{text} {holder.mechanisms[name]}" for text, name in names.items() if name in holder.mechanisms)
