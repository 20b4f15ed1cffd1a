"""What the publisher believes: the watch, and its own writes that the watch has not shown yet."""

import msgspec

from dra_gpu.api.resource_v1 import ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_gpu.apiserver.reflector import Change, Key
from dra_gpu.apiserver.slice_cache import SliceCache
from dra_gpu.apiserver.slice_diff import MANAGED_BY, MANAGED_BY_LABEL
from tests.unit.apiserver.manual_clock import ManualClock


def one(version: str, uid: str = "u", *, ours: bool = True) -> ResourceSlice:
    labels = {MANAGED_BY_LABEL: MANAGED_BY} if ours else {}
    meta = ObjectMeta(name="a", uid=uid, resource_version=version, labels=labels)
    return ResourceSlice(metadata=meta, spec=ResourceSliceSpec("d", ResourcePool("p")))


class Watched:
    """A reflector's store and the cache over it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store: dict[Key, ResourceSlice] = {}
        self.cache = SliceCache(self.store, self.clock)

    def tell(self, after: ResourceSlice | None) -> bool:
        before = self.store.pop(("", "a"), None)
        if after is not None:
            self.store["", "a"] = after
        return self.cache.observe(Change(before, after))

    def versions(self) -> list[str]:
        return [published.metadata.resource_version for published in self.cache.snapshot()]


def test_a_write_is_seen_before_the_watch_shows_it() -> None:
    watched = Watched()
    watched.cache.wrote(one("2"))
    assert watched.versions() == ["2"]


def test_an_older_event_does_not_undo_a_write() -> None:
    watched = Watched()
    watched.cache.wrote(one("3"))
    watched.tell(one("2"))
    assert watched.versions() == ["3"]


def test_once_the_watch_has_caught_up_it_is_believed_again() -> None:
    watched = Watched()
    watched.cache.wrote(one("3"))
    watched.tell(one("3"))
    watched.tell(one("4"))
    assert watched.versions() == ["4"]


def test_our_own_deletion_is_seen_at_once_and_is_no_wipe() -> None:
    watched = Watched()
    watched.tell(one("1"))
    watched.cache.removed(one("1"))
    assert watched.versions() == []
    assert watched.tell(None) is False


def test_a_deletion_by_somebody_else_is_a_wipe() -> None:
    watched = Watched()
    watched.tell(one("1"))
    assert watched.tell(None) is True


def test_a_wipe_is_noticed_even_if_the_watch_never_showed_our_last_write() -> None:
    watched = Watched()
    watched.tell(one("1"))
    watched.cache.wrote(one("2"))
    assert watched.tell(None) is True
    assert watched.versions() == []


def test_the_end_of_a_foreign_slice_is_no_wipe() -> None:
    watched = Watched()
    watched.tell(one("1", ours=False))
    assert watched.tell(None) is False


def test_an_object_made_again_by_somebody_else_ends_the_belief_in_our_deletion() -> None:
    watched = Watched()
    watched.tell(one("1"))
    watched.cache.removed(one("1"))
    watched.tell(msgspec.structs.replace(one("5", uid="other")))
    assert watched.versions() == ["5"]


def test_a_list_that_was_asked_for_later_is_the_truth() -> None:
    watched = Watched()
    watched.cache.wrote(one("3"))
    watched.clock.time = 1.0
    watched.cache.listed(0.5)
    assert watched.versions() == []


def test_a_list_that_was_asked_for_before_a_write_is_not() -> None:
    watched = Watched()
    watched.clock.time = 1.0
    watched.cache.wrote(one("3"))
    watched.cache.listed(0.5)
    assert watched.versions() == ["3"]


def test_after_a_minute_the_watch_is_believed_in_any_case() -> None:
    watched = Watched()
    watched.cache.wrote(one("3"))
    watched.clock.time = 61.0
    assert watched.versions() == []
