"""Takes away the mounts that processes leave below a directory."""

import re
import subprocess
from pathlib import Path


def mount_points(below: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> list[Path]:
    """Return the mount points at or below `below`, the last mounted first. Source: proc_pid_mountinfo(5)."""
    points = []
    for line in mountinfo.read_text().splitlines():
        escaped = line.split()[4]
        point = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)), escaped))
        if point == below or below in point.parents:
            points.append(point)
    return points[::-1]


def unmount_all(below: Path) -> int:
    """Unmount everything at or below `below`, lazily, and return how many mounts there were."""
    points = mount_points(below)
    for point in points:
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True, timeout=20)
    return len(points)
