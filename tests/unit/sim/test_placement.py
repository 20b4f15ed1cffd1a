"""PCI addresses of the simulated GPUs."""

import pytest

from dra_gpu_sim.placement import bdf, nvml_bus_id, parse_bus_id, place


@pytest.mark.case("C62")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
    ],
)
def test_every_spelling_of_an_address_leads_to_the_kernels(text, expected):
    assert bdf(*parse_bus_id(text)) == expected


def test_what_is_no_address_is_refused():
    with pytest.raises(ValueError, match="'gpu0' is not a PCI address: write it as"):
        parse_bus_id("gpu0")


def test_nvml_spells_addresses_in_upper_case_with_eight_digits_of_domain():
    assert nvml_bus_id(0xF, 0x3B, 0) == "0000000F:3B:00.0"


def test_eight_gpus_share_four_root_complexes_and_two_sockets():
    places = [place(index, rack=False) for index in range(8)]
    assert len({(where.domain, where.root) for where in places}) == 4
    assert [where.numa_node for where in places] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_sixty_four_gpus_have_sixty_four_addresses():
    assert len({(where.domain, where.bus) for where in (place(index, rack=False) for index in range(64))}) == 64


def test_each_gpu_of_a_rack_tray_has_a_domain_and_a_memory_node_of_its_own():
    places = [place(index, rack=True) for index in range(4)]
    assert [where.domain for where in places] == [0x8, 0x9, 0x18, 0x19]
    assert [where.gpu_numa_node for where in places] == [2, 10, 18, 26]
