"""What is said about a GPU that was taken out of service, reset or given back. Pure."""

import msgspec

from dra_gpu.cli.cordoning import ServiceResult
from dra_gpu.cli.tables import table
from dra_gpu.cli.taint_rules import Fate, Held


def as_json(result: ServiceResult) -> str:
    """Return it for machines."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def as_text(result: ServiceResult) -> str:
    """Return it for people: what was done, and who is concerned."""
    gpu = f"{result.gpu} of node {result.node}" + (f" ({result.uuid})" if result.uuid else "")
    lines = [f"{gpu}: {_done(result)}"]
    if result.claims and result.action in ("cordon", "drain"):
        draining = result.action == "drain"
        header = ["CLAIM", "HAS", "PODS"] + (["THEY ARE"] if draining else [])
        rows = [
            [one.shown, ", ".join(one.devices), ", ".join(one.pods) or "-"] + ([_fate(one)] if draining else [])
            for one in result.claims
        ]
        lines.append(table(header, rows))
    return "\n".join(lines)


def _done(result: ServiceResult) -> str:
    rules = f"{len(result.rules)} DeviceTaintRule{'' if len(result.rules) == 1 else 's'}"
    match result.action:
        case "cordon":
            held = "; these claims keep what they have of it" if result.claims else "; no claim has anything of it"
            return f"{'cordoned' if result.changed else 'was cordoned already'} ({rules}){held}"
        case "drain":
            held = "" if result.claims else "; no claim has anything of it"
            return f"{'drained' if result.changed else 'was drained already'} ({rules}){held}"
        case "uncordon":
            return "; ".join(filter(None, ("uncordoned" if result.changed else "was not cordoned", result.message)))
        case _:
            return f"reset: {result.message}" + ("; it stays drained" if result.rules else "")


def _fate(one: Held) -> str:
    if one.fate == Fate.STAYS.value:
        return "staying: a toleration says so"
    if one.fate == Fate.LATER.value:
        return f"evicted after {one.after_seconds} s: a toleration says so"
    return "evicted"
