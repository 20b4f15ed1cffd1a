"""Where the driver's two sockets lie. Pure; `listening` binds them.

The kubelet finds a plugin by a socket in its registry directory and calls it at another one, whose path the plugin
tells it. With a pod UID both names differ from pod to pod, so that two instances can overlap during a rolling update
(kubelet 1.33 and later); without one they are fixed.

Source: K8s v1.37 staging/src/k8s.io/dynamic-resource-allocation/kubeletplugin/draplugin.go.
"""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

MAX_PATH_BYTES = 107
"""Longest path a Unix socket can be bound to and dialled at: sun_path holds 108 bytes, the last of them a NUL.

Upstream compares with 108 when it chooses between the forms below; at exactly 108 bytes its choice can be neither bound
nor dialled (Go and Python both refuse it), so here that length already takes the next form.
"""

DEFAULT_PLUGINS_DIR = Path("/var/lib/kubelet/plugins")
DEFAULT_REGISTRY_DIR = Path("/var/lib/kubelet/plugins_registry")


class SocketPathError(ValueError):
    """A socket path that cannot work; the message says which and what to set instead."""


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """The two sockets of one instance of a driver."""

    registration: Path
    service: Path


def socket_paths(registry_dir: Path, plugins_dir: Path, driver: str, pod_uid: str | None = None) -> SocketPaths:
    """Name both sockets of `driver`; `pod_uid` makes them this pod's own.

    Raises:
        SocketPathError: a directory is relative, the driver or pod UID cannot be part of a file name, or a path would
            be longer than a Unix socket's may be.
    """
    for directory in (registry_dir, plugins_dir):
        if not directory.is_absolute():
            raise SocketPathError(
                f"directory {directory} is relative, but the kubelet dials full paths: give an absolute one"
            )
    for what, part in (("driver name", driver), ("pod UID", pod_uid if pod_uid is not None else "-")):
        if not part or "/" in part or "\0" in part or part.startswith("."):
            raise SocketPathError(
                f"{what} {part!r} cannot be part of a socket's name (empty, '/', NUL or a leading '.', which the"
                " kubelet ignores): set the one Kubernetes gave"
            )
    service = plugins_dir / driver / (f"dra-{pod_uid}.sock" if pod_uid is not None else "dra.sock")
    paths = SocketPaths(registry_dir / registration_name(registry_dir, driver, pod_uid), service)
    for path in (paths.registration, paths.service):
        if not fits(path):
            raise SocketPathError(
                f"socket path {path} has {len(bytes(path))} bytes and a Unix socket's may have {MAX_PATH_BYTES}:"
                " use a shorter kubelet directory"
            )
    return paths


def registration_name(registry_dir: Path, driver: str, pod_uid: str | None) -> str:
    """File name of the registration socket: the first of three forms whose full path fits, else the shortest.

    With a pod UID: `<driver>-<uid>-reg.sock`, `<driver>-<hash of uid>-reg.sock`, `dra-<hash of both>-reg.sock`.
    """
    if pod_uid is None:
        return f"{driver}-reg.sock"
    forms = (
        f"{driver}-{pod_uid}-reg.sock",
        f"{driver}-{_digest(pod_uid, 8)}-reg.sock",
        f"dra-{_digest(driver + chr(0) + pod_uid, 16)}-reg.sock",
    )
    return next((name for name in forms if fits(registry_dir / name)), forms[-1])


def fits(path: Path) -> bool:
    """Whether a Unix socket can be bound to `path`."""
    return len(bytes(path)) <= MAX_PATH_BYTES


def _digest(text: str, size: int) -> str:
    """First `size` bytes of the SHA-256 of `text`, in unpadded URL-safe base64."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()
