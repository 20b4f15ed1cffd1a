"""Keeps what is wrong with GPUs over restarts, in a small file of the state directory.

Promises: the file is replaced as a whole, so that kill -9 leaves the one before or the new one; a file that cannot be
understood is set aside and never stops the plugin, since the GPUs are looked at anyway.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from dra_gpu.health.faults import GpuFaults

FILE_NAME = "health.json"
_VERSION = 1
_MOST_GPUS = 256  # boards come and go; the last so many are remembered

_log = structlog.get_logger(__name__)


class HealthStoreError(Exception):
    """The file cannot be written or read; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is kept.

    Attributes:
        gpus: those of which a restart must not forget something.
        cleared: the request to call GPUs well that was carried out last.
    """

    gpus: tuple[GpuFaults, ...] = ()
    cleared: str = ""


class _File(msgspec.Struct):
    version: int
    cleared: str
    gpus: tuple[GpuFaults, ...]


class HealthStore:
    """The file.

    Args:
        state_dir: its directory, shared by all instances of the driver on this node.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME

    def load(self) -> Remembered:
        """Return what is remembered; nothing, where there is no file or it is damaged.

        Raises:
            HealthStoreError: the file is there and cannot be read.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return Remembered()
        except OSError as error:
            raise HealthStoreError(f"the health of GPUs cannot be read from {self._path}: {error}") from error
        try:
            found = msgspec.json.decode(content, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            self._set_aside(str(error))
            return Remembered()
        if found.version != _VERSION:
            self._set_aside(f"it has version {found.version}, this release knows {_VERSION}")
            return Remembered()
        return Remembered(found.gpus, found.cleared)

    def save(self, what: Remembered) -> None:
        """Write it, durably.

        Raises:
            HealthStoreError: the disk does not take it.
        """
        kept = tuple(gpu for gpu in what.gpus if gpu.memorable)[-_MOST_GPUS:]
        content = msgspec.json.encode(_File(_VERSION, what.cleared, kept))
        new = self._path.with_name(f".{FILE_NAME}.{os.getpid()}.new")
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            _sync_directory(self._path.parent)
        except OSError as error:
            raise HealthStoreError(
                f"the health of GPUs cannot be written to {self._path} ({error}): a restart would forget it; free "
                "space, or mend the disk"
            ) from error

    def _set_aside(self, reason: str) -> None:
        aside = self._path.with_suffix(".damaged")
        _log.error("the health of GPUs is not understood and set aside", path=str(self._path), reason=reason)
        try:
            self._path.replace(aside)
        except OSError as error:
            _log.warning("the file cannot be set aside; it is overwritten", reason=str(error))


def _sync_directory(path: Path) -> None:
    """Have it on disk that a file of a directory was replaced."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
