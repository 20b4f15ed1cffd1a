"""Which GPUs the kernel driver has, and since when, by sysfs."""

import pytest

from dra_gpu.vendors.nvidia.presence import Presence

ADDRESS, OTHER = "0000:1b:00.0", "0000:43:00.0"


class Sysfs:
    """A sysfs with a driver and its devices; what is taken away is kept aside, so that no inode number comes again."""

    def __init__(self, root):
        self.root, self.aside = root, root / "aside"
        self.driver, self.module, self.dev = root / "bus/pci/drivers/nvidia", root / "module/nvidia", root / "dev"
        for directory in (self.driver, self.module, self.dev, self.aside):
            directory.mkdir(parents=True)
        (self.driver / "bind").touch()
        self.bind(ADDRESS)

    def bind(self, address):
        self.take_away(self.driver / address)
        (self.driver / address).symlink_to(f"../../../../devices/pci0000:15/{address}")

    def take_away(self, path):
        if path.is_symlink() or path.exists():
            path.rename(self.aside / str(len(list(self.aside.iterdir()))))

    def presence(self, boot="boot-1"):
        return Presence(self.root, self.dev, boot)


@pytest.fixture
def sysfs(tmp_path):
    return Sysfs(tmp_path)


def test_the_same_gpus_have_the_same_marks(sysfs):
    assert sysfs.presence().mark() == sysfs.presence().mark()
    assert sysfs.presence().reset_mark(ADDRESS) == sysfs.presence().reset_mark(ADDRESS) != ""


@pytest.mark.parametrize(
    "change",
    [
        lambda sysfs: sysfs.bind(OTHER),
        lambda sysfs: sysfs.bind(ADDRESS),
        lambda sysfs: sysfs.take_away(sysfs.driver / ADDRESS),
        lambda sysfs: (sysfs.take_away(sysfs.module), sysfs.module.mkdir()),
        lambda sysfs: (sysfs.dev / "nvidia0").touch(),
    ],
    ids=["bound", "bound anew", "unbound", "driver reloaded", "device node made"],
)
def test_who_comes_or_goes_changes_the_mark(sysfs, change):
    before = sysfs.presence().mark()

    change(sysfs)

    assert sysfs.presence().mark() != before


def test_what_is_no_gpu_changes_nothing(sysfs):
    before = sysfs.presence().mark()

    (sysfs.driver / "new_id").touch()
    (sysfs.dev / "nvidia-caps").mkdir()
    (sysfs.dev / "nvidiactl").touch()

    assert sysfs.presence().mark() == before


def test_a_gpu_that_is_bound_anew_has_another_mark_and_the_others_have_not(sysfs):
    sysfs.bind(OTHER)
    before = [sysfs.presence().reset_mark(address) for address in (ADDRESS, OTHER)]

    sysfs.bind(ADDRESS)

    after = [sysfs.presence().reset_mark(address) for address in (ADDRESS, OTHER)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True]


def test_a_driver_that_is_loaded_anew_changes_the_mark_of_a_gpu_without_an_address(sysfs):
    before = sysfs.presence().reset_mark(None)

    sysfs.take_away(sysfs.module)
    sysfs.module.mkdir()

    assert sysfs.presence().reset_mark(None) not in ("", before)


def test_another_boot_is_another_mark(sysfs):
    assert sysfs.presence("boot-1").reset_mark(ADDRESS) != sysfs.presence("boot-2").reset_mark(ADDRESS)


def test_without_a_driver_nothing_is_told(tmp_path):
    presence = Presence(tmp_path / "sys", tmp_path / "dev", "boot-1")

    assert presence.reset_mark(ADDRESS) == ""
    assert not presence.bound(ADDRESS)
    assert presence.mark() == presence.mark()


def test_a_gpu_is_bound_as_long_as_the_driver_has_it(sysfs):
    assert sysfs.presence().bound(ADDRESS)

    sysfs.take_away(sysfs.driver / ADDRESS)

    assert not sysfs.presence().bound(ADDRESS)
