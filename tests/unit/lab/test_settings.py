"""What one `up` decides."""

from dataclasses import astuple
from pathlib import Path

from lab.settings import Settings


def test_no_port_is_one_that_the_kernel_gives_to_a_client_while_its_server_is_stopped() -> None:
    low, high = (int(number) for number in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())

    ports = astuple(Settings.new(1).ports)

    assert len(set(ports)) == 6
    assert [port for port in ports if low <= port <= high] == []
