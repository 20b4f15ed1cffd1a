"""Removes registration sockets that killed instances of this driver left.

A killed process leaves its sockets, and each instance has names of its own (its pod's UID), so nobody would replace
them: the kubelet goes on dialling each of them, with a growing pause, until the node is rebooted.
Source: K8s v1.37 pkg/kubelet/pluginmanager.
"""

import time
from pathlib import Path

import structlog

from dra_gpu.kubelet.listening import identify, somebody_listens

YOUNG_SECONDS = 10.0
"""A socket is bound a moment before somebody listens at it; ten seconds later nobody ever will."""

_SUFFIX = "-reg.sock"

_log = structlog.get_logger(__name__)


def remove_dead_registrations(registry_dir: Path, driver: str, own: Path) -> tuple[Path, ...]:
    """Remove sockets `<driver>[-<pod>]-reg.sock` that refuse connections and are not young; returns which.

    A socket at which somebody listens, another driver's, a file that is no socket, and `own` stay. Blocks for a few
    system calls a socket. What cannot be removed is logged and left.

    Args:
        registry_dir: the kubelet's directory of registration sockets.
        driver: whose sockets.
        own: the socket of this instance.
    """
    removed = []
    for path in sorted(registry_dir.glob("*")):
        if path == own or not _is_ours(path.name, driver):
            continue
        try:
            if _is_dead(path):
                path.unlink()
                removed.append(path)
        except OSError as error:
            _log.warning("a socket that an earlier instance left stays", path=str(path), reason=str(error))
    if removed:
        _log.info("removed registration sockets of killed instances", paths=[str(path) for path in removed])
    return tuple(removed)


def living_registrations(registry_dir: Path, driver: str, own: Path) -> tuple[Path, ...]:
    """Return the sockets of other instances of this driver at which somebody listens. Blocks as above."""
    return tuple(
        path
        for path in sorted(registry_dir.glob("*"))
        if path != own and _is_ours(path.name, driver) and path.is_socket() and somebody_listens(path)
    )


def _is_ours(name: str, driver: str) -> bool:
    return name == f"{driver}{_SUFFIX}" or (name.startswith(f"{driver}-") and name.endswith(_SUFFIX))


def _is_dead(path: Path) -> bool:
    """Tell whether a socket is old enough, refuses connections, and is still the same file after that was seen."""
    before = identify(path)
    if before is None or not path.is_socket() or time.time() - path.lstat().st_mtime < YOUNG_SECONDS:
        return False
    return not somebody_listens(path) and identify(path) == before
