"""Object names of ResourceSlices: the same slice of a pool always has the same name, so creating is idempotent.

The scheduler walks the slices of a pool in the order of their names (Source: K8s v1.37
dynamic-resource-allocation/structured/internal, sortSlicesByName), so the name starts with the slice's index.
"""

import hashlib

MAX_NAME = 253  # DNS subdomain
_HASH_LENGTH = 16


def slice_name(index: int, driver: str, node: str, pool: str) -> str:
    """Return the name of a pool's slice: five hexadecimal digits, driver, node.

    A name that would be too long, and one of a pool with another name, ends in a hash of driver, node and pool: two
    nodes that are equal in their first 200 characters get different names.
    """
    whole = f"{index:05x}-{driver}-{node}"
    if pool == node and len(whole) <= MAX_NAME:
        return whole
    digest = hashlib.sha256(f"{driver}/{node}/{pool}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"{whole[: MAX_NAME - _HASH_LENGTH - 1].rstrip('.-')}-{digest}"
