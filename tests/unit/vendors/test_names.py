import pytest

from dra_gpu.vendors.nvidia import names


@pytest.mark.case("C67")
def test_a_brand_that_no_table_knows_is_printed_as_its_number():
    assert names.brand(99) == "99"


@pytest.mark.parametrize(
    ("cores", "capability", "expected"),
    [
        (16896, (9, 0), 132),
        (6912, (8, 0), 108),
        (2560, (7, 5), 40),
        (24064, (12, 0), 188),
        (None, (9, 0), None),
        (16896, None, None),
    ],
)
def test_multiprocessors_are_cores_by_the_cores_of_one(cores, capability, expected):
    assert names.multiprocessors(cores, capability) == expected


def test_what_nvml_does_not_tell_stays_unknown():
    assert names.brand(None) is None
    assert names.architecture(None) is None
