"""The command lines of the driver's processes on a lab node."""

from pathlib import Path

from lab.driver import DriverInstance
from lab.layout import Layout
from lab.simulated import SimulatedGpus


def an_instance() -> DriverInstance:
    layout = Layout(Path("/tmp/lab"))
    return DriverInstance.new(layout, layout.node(1), SimulatedGpus(Path("/tmp/lab/node-1/sim")))


def test_the_plugin_asks_the_mps_service_of_its_own_node() -> None:
    plugin = an_instance()

    assert f"--mps-socket={plugin.mps.socket}" in plugin.command()
    assert plugin.mps.socket == Path("/tmp/lab/node-1/mps/mps.sock")


def test_the_plugin_and_the_mps_service_see_the_same_driver_and_the_same_boot() -> None:
    plugin = an_instance()

    for flag in ("--driver-root=", "--boot-id-file="):
        (of_plugin,) = (argument for argument in plugin.command() if argument.startswith(flag))
        assert of_plugin in plugin.mps.command()


def test_the_longest_state_directory_leaves_room_for_the_socket_of_a_share() -> None:
    longest = "/" + "x" * 33
    share = Layout(Path(longest)).node(10).mps_dir / "01234567" / "pipe" / "gpu" / f"s_{'0' * 32}" / "control"

    assert len(str(share)) <= 107


def test_the_mps_service_has_a_cgroup_apart_from_pods_and_their_runtime() -> None:
    layout = Layout(Path("/tmp/lab"))
    node = layout.node(1)

    assert layout.mps_cgroup(node) not in {layout.node_cgroup(node), layout.runtime_cgroup(node)}
    assert layout.mps_cgroup(node).startswith(f"{layout.node_cgroup(node)}/")
