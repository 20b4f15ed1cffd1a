"""Patches: JSON merge patch (RFC 7386), and server-side apply in the simple form that this server gives it.

Apply merges like a merge patch, except that the lists which Kubernetes keeps as maps (device statuses of a claim,
owner references, conditions) merge by their keys. Field ownership is not kept: two managers that apply the same
field both win. Strategic merge patch is treated the same way.
"""

from collections.abc import Mapping
from typing import Any

from dra_gpu_sim.apiserver.store import copied

_LIST_KEYS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("status", "devices"): ("driver", "pool", "device", "shareID"),
    ("status", "conditions"): ("type",),
    ("status", "reservedFor"): ("uid",),
    ("metadata", "ownerReferences"): ("uid",),
    ("status", "devices", "*", "conditions"): ("type",),
    ("spec", "taints"): ("key", "effect"),
}


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copied(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def merge_by_keys(target: Any, patch: Any, path: tuple[str, ...] = ()) -> Any:
    """Merge as :func:`merge`, with keyed lists."""
    if isinstance(patch, Mapping):
        result = dict(target) if isinstance(target, Mapping) else {}
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merge_by_keys(result.get(key), value, (*path, key))
        return result
    keys = _LIST_KEYS.get(path)
    if keys is None or not isinstance(patch, list):
        return copied(patch)
    merged = {_identity(item, keys): item for item in (target or [])}
    for item in patch:
        identity = _identity(item, keys)
        merged[identity] = merge_by_keys(merged.get(identity), item, (*path, "*"))
    return list(merged.values())


def _identity(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in keys)
