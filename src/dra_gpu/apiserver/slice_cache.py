"""Our node's slices as they are: what the watch has told, corrected by our own writes that it has not told yet.

Without the correction a write would look undone until its event arrives, and would be repeated. A correction ends
when the watch catches up with it, when a list that was asked for later shows the truth, or after a minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_gpu.api.resource_v1 import ResourceSlice
from dra_gpu.apiserver.clock import Clock
from dra_gpu.apiserver.reflector import Change, Key
from dra_gpu.apiserver.slice_diff import is_ours

_TRUSTED_SECONDS = 60.0  # as long as client-go's MutationCache believes its own writes


@dataclass(frozen=True, slots=True)
class _Correction:
    """What we did to one name: `stored` is None after a deletion."""

    uid: str
    version: str
    at: float
    stored: ResourceSlice | None


class SliceCache:
    """A view of a reflector's store with our own writes on top."""

    def __init__(self, watched: Mapping[Key, ResourceSlice], clock: Clock) -> None:
        self._watched = watched
        self._clock = clock
        self._corrections: dict[str, _Correction] = {}

    def snapshot(self) -> list[ResourceSlice]:
        """Return all slices of our driver and node, foreign ones among them, by name."""
        now = self._clock.now()
        for name, correction in list(self._corrections.items()):
            if now - correction.at > _TRUSTED_SECONDS:
                del self._corrections[name]
        merged: dict[str, ResourceSlice] = {name: one for (_, name), one in self._watched.items()}
        for name, correction in self._corrections.items():
            if correction.stored is None:
                if name in merged and merged[name].metadata.uid == correction.uid:
                    del merged[name]
            else:
                merged[name] = correction.stored
        return [merged[name] for name in sorted(merged)]

    def wrote(self, stored: ResourceSlice) -> None:
        """Believe the server's answer to a write, or to a read of one object."""
        meta = stored.metadata
        self._corrections[meta.name] = _Correction(meta.uid, meta.resource_version, self._clock.now(), stored)

    def removed(self, gone: ResourceSlice) -> None:
        """Believe that a slice is no more."""
        meta = gone.metadata
        self._corrections[meta.name] = _Correction(meta.uid, meta.resource_version, self._clock.now(), None)

    def observe(self, change: Change[ResourceSlice]) -> bool:
        """Take note of what the watch tells; returns True if somebody else deleted one of our slices."""
        shown = change.after or change.before
        assert shown is not None
        correction = self._corrections.get(shown.metadata.name)
        if change.after is None:
            if correction is not None and correction.uid == shown.metadata.uid:
                del self._corrections[shown.metadata.name]
                return correction.stored is not None and is_ours(shown)
            return is_ours(shown)
        if correction is not None:
            caught_up = correction.version == change.after.metadata.resource_version
            if caught_up or (correction.stored is None and correction.uid != change.after.metadata.uid):
                del self._corrections[shown.metadata.name]
        return False

    def listed(self, asked_at: float) -> None:
        """Forget corrections from before a list was asked for: it shows their outcome."""
        for name, correction in list(self._corrections.items()):
            if correction.at < asked_at:
                del self._corrections[name]
