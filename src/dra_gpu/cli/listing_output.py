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


def nothing_found(node: str) -> str:
    """Say for people why a list may be empty; `node` is the only one that was asked for, "" for all."""
    if node:
        return f"No GPU is published on node {node!r}: does it exist, and does a node plugin run there?"
    return f"No GPU is published by {DRIVER}: is the driver installed, and is a node plugin running?"


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
    header = ["NODE", "GPU", "PRODUCT", "MEMORY", "FREE", "HELD BY", "WHAT ENFORCES IT", "HEALTH"]
    wide_header = ["ISOLATION", "VIEWS", "NVLINK GROUP", "NUMA", "PCI", "UUID"]
    rows, groups = [], _nvlink_groups(gpus)
    for gpu in gpus:
        row = [
            gpu.node,
            gpu.name,
            gpu.product,
            "-" if gpu.memory == "-" else _gibibytes(quantity.parse_int(gpu.memory)),
            _free(gpu),
            "\n".join(_held(holder) for holder in gpu.holders if not holder.growth_of) or "-",
            "\n".join(_enforced(holder) for holder in gpu.holders if not holder.growth_of) or "-",
            gpu.health,
        ]
        more = [gpu.isolation, ", ".join(gpu.views), groups[gpu.node, gpu.nvlink_group], gpu.numa_node]
        rows.append([*row, *more, gpu.pci, gpu.uuid] if wide else row)
    return table([*header, *wide_header] if wide else header, rows)


def _nvlink_groups(gpus: list[ListedGpu]) -> dict[tuple[str, str], str]:
    """Name each group by its first GPU, as a UUID says nothing to a person; a GPU alone is joined with nobody."""
    members: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus:
        members.setdefault((gpu.node, gpu.nvlink_group), []).append(gpu.name)
    return {key: names[0] if key[1] and len(names) > 1 else "-" for key, names in members.items()}


def _free(gpu: ListedGpu) -> str:
    percent, memory = free(gpu)
    if percent == 0 and not memory:
        return f"MIG {', '.join(gpu.free_partitions)}" if gpu.free_partitions else "-"
    return _share(percent, None if memory is None else _gibibytes(memory))


def _held(holder: Holder) -> str:
    if holder.admin:
        return f"{holder.claim} (admin access)"
    parts = [f"MIG {holder.profile}"] if holder.profile else []
    has = holder.capacities | holder.effective  # what was moved since is in force, and not what was allocated
    percent = has.get(capacities.COMPUTE_PERCENT)
    if percent is not None:
        parts.append(_share(percent, has.get(capacities.MEMORY)))
    return f"{holder.claim} ({': '.join(parts) or 'whole'})"


def _share(percent: int | str, memory: str | None) -> str:
    return f"{percent} % SMs" if memory is None else f"{percent} % SMs, {memory}"


def _gibibytes(value: int) -> str:
    """Return a number of bytes in one unit for the whole column, rounded down: what is shown can be asked for."""
    tenths = value * 10 // 2**30
    whole, tenth = divmod(tenths, 10)
    return f"{whole}.{tenth}Gi" if tenth else f"{whole}Gi"


def _enforced(holder: Holder) -> str:
    """Say what limits SMs and memory of a share; a whole GPU needs no limit, and a watcher has none."""
    if holder.admin:
        return "-"
    if not holder.mechanisms:
        return "not reported yet" if holder.share else "-"
    names = {"SMs": capacities.COMPUTE_PERCENT, "memory": capacities.MEMORY}
    said = {text: holder.mechanisms[name] for text, name in names.items() if name in holder.mechanisms}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return ", ".join(f"{text}: {mechanism}" for text, mechanism in said.items())
