from hypothesis import given
from hypothesis import strategies as st

from dra_gpu.inventory import naming
from tests.unit.inventory.builders import gpu


def test_a_gpu_is_named_by_its_minor_number():
    assert naming.assign({}, [gpu(3)]) == {"0000:13:00.0": "gpu-3"}


def test_a_name_stays_with_its_slot_when_minor_numbers_move():
    known = naming.assign({}, [gpu(0), gpu(1)])

    names = naming.assign(known, [gpu(1, minor=0)])

    assert names["0000:11:00.0"] == "gpu-1"


def test_a_new_gpu_does_not_take_a_name_given_before():
    known = naming.assign({}, [gpu(0), gpu(1)])

    names = naming.assign(known, [gpu(5, minor=0)])

    assert names["0000:15:00.0"] == "gpu-2"


def test_a_gpu_without_pci_is_known_by_its_uuid():
    assert naming.assign({}, [gpu(0, pci_address=None, minor=None)]) == {
        "gpu-00000000-0000-0000-0000-000000000000": "gpu-0"
    }


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=30))
def test_names_are_unique_and_never_change(sightings):
    names: dict[str, str] = {}
    for number, minor in sightings:
        before = dict(names)
        names = naming.assign(names, [gpu(number, minor=minor)])
        assert before.items() <= names.items()

    assert len(set(names.values())) == len(names)
