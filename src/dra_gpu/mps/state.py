"""What the service was asked for, on disk before it is done, so that it can be done again.

One small JSON file, replaced as a whole: a reader sees the state of before or of after. It counts for one boot, with
which daemons, namespaces and compute modes end, so that it need not outlive a power cut.
"""

from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.service import Limits

_log = structlog.get_logger(__name__)


class ShareState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A share that was asked for; `ending` when it is being given up."""

    limits: Limits = Limits()
    ending: bool = False


class GpuState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A GPU that was asked for.

    Attributes:
        directory: name of its directory.
        protocol: how its shares are limited; stays as long as it is shared, since containers mount what it made.
        former_mode: compute mode of before, to be set again at the end.
        shares: by name.
        started: its daemon has run; starting it once more is a restart.
        restarts: how often that was necessary.
        ending: it is being given up with all its shares.
        barred: nobody is let onto the GPU, since its daemon has died and is not back yet.
    """

    directory: str
    protocol: MpsProtocol
    former_mode: int
    shares: dict[str, ShareState] = {}
    started: bool = False
    restarts: int = 0
    ending: bool = False
    barred: bool = False

    def with_share(self, name: str, share: ShareState | None) -> "GpuState":
        """Return the state with a share added, changed or (None) left out."""
        others = {other: kept for other, kept in self.shares.items() if other != name}
        return msgspec.structs.replace(self, shares=others if share is None else {**others, name: share})

    @property
    def live(self) -> dict[str, ShareState]:
        """The shares that are not being given up."""
        return {name: share for name, share in self.shares.items() if not share.ending}


class State(msgspec.Struct, frozen=True, rename="camel"):
    """Everything the service was asked for in one boot, by the GPUs' UUIDs."""

    boot_id: str
    gpus: dict[str, GpuState] = {}


class StateError(Exception):
    """The state cannot be read or written; the message names the file, the reason and the remedy."""


class StateFile:
    """The file; one process has it at a time (see `server.hold_lock`)."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self.damaged: str = ""

    def load(self) -> State:
        """Return the state; empty when there is none, or only one of an earlier boot.

        A file whose content cannot be understood is set aside under another name, and `damaged` says so.

        Raises:
            StateError: the file cannot be read.
        """
        nothing = State(self._boot_id)
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=State)
        except FileNotFoundError:
            return nothing
        except OSError as error:
            raise StateError(f"{self._path} cannot be read ({error}): check the directory's file system") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            aside = self._path.with_suffix(".damaged")
            with suppress(OSError):
                self._path.replace(aside)
            self.damaged = f"{self._path} was damaged ({error}) and is kept as {aside}"
            return nothing
        return state if state.boot_id == self._boot_id else nothing

    def save(self, state: State) -> None:
        """Replace the state on disk, whole or not at all.

        Raises:
            StateError: it cannot be written; the one of before stays.
        """
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(msgspec.json.encode(state))
            temporary.replace(self._path)
        except OSError as error:
            raise StateError(
                f"{self._path} cannot be written ({error}): free space, or give another --directory"
            ) from error


class Ledger:
    """The state in memory and on disk: what is asked for counts once it is on disk, what is given up counts at once."""

    def __init__(self, file: StateFile) -> None:
        """Read the file.

        Raises:
            StateError: it cannot be read.
        """
        self._file = file
        self._state = file.load()
        self._unsaved = False

    @property
    def gpus(self) -> dict[str, GpuState]:
        """Everything that was asked for, by UUID."""
        return self._state.gpus

    def put(self, gpu: str, state: GpuState | None) -> None:
        """Change what was asked for of a GPU; None: nothing any more.

        Raises:
            StateError: it cannot be written, and has not changed.
        """
        changed = self._changed(gpu, state)
        self._file.save(changed)
        self._state, self._unsaved = changed, False

    def let_go(self, gpu: str, state: GpuState | None) -> None:
        """Change what was asked for of a GPU to less: a full disk must keep no GPU. It follows with the next change."""
        self._state, self._unsaved = self._changed(gpu, state), True
        self.flush()

    def flush(self) -> None:
        """Write what a full disk did not take, if it does now."""
        if not self._unsaved:
            return
        try:
            self._file.save(self._state)
            self._unsaved = False
        except StateError as error:
            _log.warning("what was given up is written later", reason=str(error))

    def _changed(self, gpu: str, state: GpuState | None) -> State:
        gpus = {other: kept for other, kept in self._state.gpus.items() if other != gpu}
        return msgspec.structs.replace(self._state, gpus=gpus if state is None else {**gpus, gpu: state})
