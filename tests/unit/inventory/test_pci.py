import pytest

from dra_gpu.inventory import pci


@pytest.mark.case("C62")
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("", None),
        ("pci--card", None),
        ("../../etc", None),
    ],
)
def test_an_address_gets_the_spelling_of_sysfs(raw, expected):
    assert pci.normalise(raw) == expected
