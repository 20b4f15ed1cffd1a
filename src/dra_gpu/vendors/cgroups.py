"""Finds the cgroup of a pod: the kubelet makes it before it asks to prepare the pod's claims.

Only cgroup v2 is looked at, since nothing limits device memory on v1. The kubelet names pods' cgroups by its cgroup
driver: `kubepods/burstable/pod<uid>` (cgroupfs) or `kubepods-burstable-pod<uid>.slice` with underscores (systemd);
guaranteed pods lie right below kubepods, and a kubelet with a cgroupRoot puts all of it one level deeper.
Source: Kubernetes v1.37, pkg/kubelet/cm/pod_container_manager_linux.go and cgroup_manager_linux.go.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_POD_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}", re.ASCII)
# The kubelet's directory of a pod in either driver's spelling; a container lies below it. Static pods have 32 digits.
_POD_DIRECTORY = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?(?:/|$)"
)
_QOS = ("", "burstable", "besteffort")
# Present in the root of every cgroup v2 hierarchy (Linux, Documentation/admin-guide/cgroup-v2.rst).
_MARK = "cgroup.controllers"


class PodCgroups:
    """The cgroups of this node's pods.

    Args:
        root: where the unified hierarchy is mounted (`/sys/fs/cgroup`).
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def available(self) -> bool:
        """Whether this node has cgroup v2."""
        return (self._root / _MARK).is_file()

    def of_pod(self, uid: str) -> str | None:
        """Return the path of a pod's cgroup; None when there is none, or no cgroup v2.

        A UID that could not be one is not looked for: it would become a part of a path.
        """
        if _POD_UID.fullmatch(uid) is None or not self.available:
            return None
        for base in (self._root, *self._cgroup_roots()):
            for candidate in _candidates(base, uid):
                if candidate.is_dir():
                    return str(candidate)
        return None

    def _cgroup_roots(self) -> Iterator[Path]:
        """Yield directories in which a kubelet with a cgroupRoot of its own may keep its pods."""
        try:
            yield from sorted(path for path in self._root.iterdir() if path.is_dir())
        except OSError:
            return


def pod_of_process(processes: Path, pid: int) -> str | None:
    """Return the UID of the pod that a process belongs to; None for one of no pod, or that has ended.

    Args:
        processes: where a procfs is mounted that shows the host's processes.
        pid: in the pid namespace of that procfs.
    """
    try:
        text = (processes / str(pid) / "cgroup").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = next(filter(None, (_POD_DIRECTORY.search(line) for line in text.splitlines())), None)
    return found[1].replace("_", "-") if found is not None else None


def _candidates(base: Path, uid: str) -> Iterator[Path]:
    for qos in _QOS:
        yield base / "kubepods" / qos / f"pod{uid}"
    prefix = f"{base.name.removesuffix('.slice')}-" if base.name.endswith(".slice") else ""
    slices = base / f"{prefix}kubepods.slice"
    for qos in _QOS:
        name = f"{prefix}kubepods-{qos}" if qos else f"{prefix}kubepods"
        parent = slices / f"{name}.slice" if qos else slices
        yield parent / f"{name}-pod{uid.replace('-', '_')}.slice"
