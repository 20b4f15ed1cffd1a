"""The lab's own part of the cgroup tree: made for the kubelets, emptied and removed at the end.

Works on cgroup v1, hybrid and v2. Sources: Linux Documentation/admin-guide/cgroup-v1/cpusets.rst (a new cpuset has no
cpus and mems, and takes no process before it has) and cgroup-v2.rst (controllers are handed down through
cgroup.subtree_control; a group with processes cannot hand any down).
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

_EMPTY_WITHIN_SECONDS = 15.0


@dataclass(frozen=True)
class Cgroups:
    """The mounted hierarchies; `unified` says that there is one, of version 2, for everything."""

    mounts: tuple[Path, ...]
    unified: bool

    @classmethod
    def detect(cls, root: Path = Path("/sys/fs/cgroup"), mountinfo: Path = Path("/proc/self/mountinfo")) -> "Cgroups":
        """Find the hierarchies that are mounted at or below `root`.

        Raises:
            LabError: there is none.
        """
        if (root / "cgroup.controllers").exists():
            return cls((root,), unified=True)
        mounts = []
        for line in mountinfo.read_text().splitlines():
            before, _, after = line.partition(" - ")
            point = Path(before.split()[4])
            if after.split()[0] in {"cgroup", "cgroup2"} and root in point.parents and not point.is_symlink():
                mounts.append(point)
        if not mounts:
            raise LabError(
                f"no cgroup hierarchy is mounted at {root}: mount one, or start the lab on a machine that has one"
            )
        return cls(tuple(sorted(set(mounts))), unified=False)

    def make(self, group: str) -> None:
        """Make `group` (as `lab/node-1`) in every hierarchy, with all controllers, cpus and memories."""
        for mount in self.mounts:
            current = mount
            for part in Path(group).parts:
                if self.unified:
                    _hand_down_controllers(current)
                parent, current = current, current / part
                current.mkdir(exist_ok=True)
                for name in () if self.unified else ("cpuset.cpus", "cpuset.mems"):
                    setting = current / name
                    if setting.exists() and not setting.read_text().strip():
                        setting.write_text((parent / name).read_text())
            if self.unified and group.count("/") == 0:
                _hand_down_controllers(current)

    def procs_file(self, group: str) -> Path:
        """Return the file that a process writes its pid into to be found in `group` by `kill`."""
        pids = next((mount for mount in self.mounts if mount.name == "pids"), self.mounts[0])
        return pids / group / "cgroup.procs"

    def exists(self, group: str) -> bool:
        """Return whether any hierarchy has `group`."""
        return any((mount / group).exists() for mount in self.mounts)

    def processes(self, group: str) -> set[int]:
        """Return the pids in `group` and everything below it, over all hierarchies."""
        found: set[int] = set()
        for mount in self.mounts:
            for directory in _below(mount / group):
                try:
                    found.update(int(pid) for pid in (directory / "cgroup.procs").read_text().split())
                except OSError:
                    continue
        return found

    def kill(self, group: str) -> None:
        """Send SIGKILL to all processes in `group` and below until there are none.

        Raises:
            LabError: some are still there after 15 s.
        """
        deadline = time.monotonic() + _EMPTY_WITHIN_SECONDS
        while pids := self.processes(group):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline:
                raise LabError(f"processes {sorted(pids)} in cgroup {group} survive SIGKILL: look at /proc/<pid>/stack")
            time.sleep(0.02)

    def remove(self, group: str) -> None:
        """Remove `group` with everything below it.

        Raises:
            LabError: the kernel keeps a group busy for more than 15 s.
        """
        deadline = time.monotonic() + _EMPTY_WITHIN_SECONDS
        for mount in self.mounts:
            for directory in reversed(_below(mount / group)):
                while True:
                    try:
                        directory.rmdir()
                    except FileNotFoundError:
                        break
                    except OSError as error:
                        if time.monotonic() > deadline:
                            raise LabError(f"cannot remove cgroup {directory}: {error.strerror}") from error
                        time.sleep(0.02)
                    else:
                        break


def _below(directory: Path) -> list[Path]:
    """Return `directory` and all groups below it, parents first; nothing where it does not exist."""
    return [Path(path) for path, _, _ in os.walk(directory)]


def _hand_down_controllers(directory: Path) -> None:
    available = (directory / "cgroup.controllers").read_text().split()
    control = directory / "cgroup.subtree_control"
    wanted = [name for name in available if name not in control.read_text().split()]
    if not wanted:
        return
    request = " ".join(f"+{name}" for name in wanted)
    try:
        control.write_text(request)
    except OSError:
        # In a container the visible root has processes of its own: they move into a leaf, as the kernel's rule demands.
        leaf = directory / "init"
        leaf.mkdir(exist_ok=True)
        for pid in (directory / "cgroup.procs").read_text().split():
            try:
                (leaf / "cgroup.procs").write_text(pid)
            except OSError:
                continue  # it ended, or is a kernel thread
        control.write_text(request)
