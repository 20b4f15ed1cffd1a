"""What is wrong with GPUs outlives the process."""

import pytest

from dra_gpu.health.store import FILE_NAME, HealthStore, HealthStoreError, Remembered
from tests.unit.health.reports import SMALL, Gpu, after, xid


@pytest.fixture
def store(tmp_path):
    return HealthStore(tmp_path)


def sick():
    gpu = Gpu()
    gpu.looks(0, counter=5)
    gpu.happens(xid(95), 1)
    gpu.happens(xid(48, gpu_instance=7), 2, SMALL)
    return gpu.faults


def test_what_is_kept_comes_back_as_it_was(store):
    store.save(Remembered((sick(),), "GPU-1"))

    assert store.load() == Remembered((sick(),), "GPU-1")


def test_at_first_nothing_is_known(store):
    assert store.load() == Remembered()


def test_a_gpu_that_is_well_needs_no_memory(store, tmp_path):
    gpu = Gpu()
    gpu.looks(0)

    store.save(Remembered((gpu.faults,)))

    assert store.load().gpus == ()


def test_that_a_gpu_reports_no_events_is_known_after_a_restart_so_that_its_slices_are_not_written_twice(store):
    gpu = Gpu()
    gpu.faults = gpu.policy.monitored(gpu.faults, after(1), by_events=False)

    store.save(Remembered((gpu.faults,)))

    assert store.load().gpus == (gpu.faults,)


def test_boards_that_come_and_go_do_not_pile_up(store):
    many = tuple(type(sick())(f"GPU-{number}", whole=sick().whole) for number in range(300))

    store.save(Remembered(many))

    kept = store.load().gpus
    assert len(kept) == 256
    assert kept[-1].gpu == "GPU-299"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\x00" * 100, b"\xff\xfe", b'{"version":1}', b'{"version":1,"cleared":"","gpus":[{"gpu":5}]}',
     b'{"version":2,"cleared":"","gpus":[]}', b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_is_set_aside_and_nothing_is_known(store, tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)

    assert store.load() == Remembered()

    assert (tmp_path / "health.damaged").read_bytes() == content
    store.save(Remembered((sick(),)))
    assert store.load().gpus == (sick(),)


def test_a_file_that_cannot_be_read_is_said_so(store, tmp_path):
    (tmp_path / FILE_NAME).mkdir()

    with pytest.raises(HealthStoreError, match=r"cannot be read from .*health\.json"):
        store.load()


def test_a_disk_that_does_not_take_it_leaves_what_was_there(store, tmp_path):
    store.save(Remembered((), "first"))
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()

    with pytest.raises(HealthStoreError, match="free space, or mend the disk"):
        store.save(Remembered((), "second"))


def test_nothing_but_the_file_is_left(store, tmp_path):
    store.save(Remembered((sick(),)))
    store.save(Remembered((), "again"))

    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
