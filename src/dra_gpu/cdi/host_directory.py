"""A directory of the host under its two names: the host's, which goes into specifications, and this process's own.

A containerised driver sees the host's `/run/nvidia/driver` as, say, `/driver-root`. Looking happens under the one
name, writing under the other. Links are followed as a process would that has the directory as its root: an absolute
target starts at the directory, and nothing leads out of it.
Source: openat2(2), RESOLVE_IN_ROOT; path_resolution(7), the limit of 40 links.
"""

import errno
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class HostDirectory:
    """One directory, seen from two sides.

    Attributes:
        host: its path on the host.
        process: its path in this process' file system.
    """

    host: PurePosixPath
    process: Path

    @classmethod
    def same(cls, path: Path) -> "HostDirectory":
        """Return a directory that has one name for both, as for a driver that runs on the host itself."""
        return cls(PurePosixPath(path), path)

    def real(self) -> "HostDirectory":
        """Return the directory with links in its own path followed.

        Where the two names differ only this process' name can be followed; the host's stays as it was given.
        """
        process = Path(os.path.realpath(self.process))
        if PurePosixPath(self.process) == self.host:
            return HostDirectory(PurePosixPath(process), process)
        return HostDirectory(self.host, process)

    def resolve(self, path: PurePosixPath) -> PurePosixPath:
        """Follow every link in `path`, taken relative to this directory, and never leave the directory.

        Returns:
            The path without links, relative to this directory; something exists there.

        Raises:
            FileNotFoundError: a part does not exist.
            OSError: a part is not a directory, or more than 40 links were met (ELOOP).
        """
        # Plain texts, not Path objects: this runs dozens of times for each specification and is four times as fast.
        base = str(self.process).rstrip("/")
        pending = list(reversed(path.parts))
        walked: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part.startswith("/"):
                walked.clear()
            elif part == "..":
                del walked[-1:]
            else:
                target = _link_target("/".join((base, *walked, part)))
                if target is None:
                    walked.append(part)
                    continue
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self.on_host(path)))
                pending += reversed(PurePosixPath(target).parts)
        return PurePosixPath(*walked)

    def on_host(self, path: PurePosixPath) -> PurePosixPath:
        """Return the host's name of a path relative to this directory."""
        return self.host.joinpath(path.relative_to("/") if path.is_absolute() else path)

    def here(self, path: PurePosixPath) -> Path:
        """Return this process' name of a path relative to this directory."""
        return self.process.joinpath(path.relative_to("/") if path.is_absolute() else path)


def _link_target(path: str) -> str | None:
    """Return where a link points, None for anything else that exists."""
    try:
        return os.readlink(path)  # noqa: PTH115 - see `resolve`
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
