"""The driver leaves a node for good: no pod stays Terminating, and the node is as it was before the driver came."""

import re

from tests.component.node.node_under_fire import until
from tests.component.node.scraping import Scraper
from tests.component.upgrade.held import DEVICES, EVERY_KIND, HeldNode

NOT_YET = "the driver cannot leave this node yet"
LEFT = "nothing of the driver is on this node"


def of_the_driver(held: HeldNode) -> dict[str, object]:
    """Everything of the driver that is on the node or on the server; empty once it has left."""
    paths = held.cluster.paths
    now = held.node.snapshot()
    found = {
        "hardware": now if now != held.sharing.before else None,
        "slices": held.cluster.slices(),
        "files": held.world.cdi_files,
        "state": sorted(str(path) for path in paths.state.rglob("*")) if paths.state.exists() else [],
        "sockets": sorted(path.name for path in (paths.kubelet / "plugins_registry").iterdir()),
        "mps": sorted(str(path) for path in paths.mps.glob("*/")),
    }
    return {name: one for name, one in found.items() if one}


async def test_a_node_on_which_nothing_is_held_is_left_at_once(held):
    serving = await held.start()
    await held.cluster.wait_slices(DEVICES)
    await held.stop(serving)

    leaving = await held.start(leave=True)

    assert await held.ended(leaving) == 0, leaving.read_log()
    assert of_the_driver(held) == {}


async def test_what_is_held_is_given_back_first_and_nothing_new_is_prepared(held):
    serving = await held.start()
    await held.hold(*EVERY_KIND)
    await held.stop(serving)
    leaving = await held.start(leave=True)
    # A pod that restarts its containers is served all the same.
    share = held.claims["share"]
    pod = held.sharing.of("share", share, await held.world.prepared(share), held.cgroup)
    client = held.sharing.client(pod)

    await until(lambda: NOT_YET in leaving.read_log())
    await until(lambda: held.cluster.slices() == [])
    refused = await held.world.refused(held.world.claim("late", "gpu-3-monitor"))
    assert client.command("alloc 1M").startswith("ok")
    assert set(held.states().values()) == {"prepared"}
    client.kill()
    await held.give_back()

    assert "is being removed from this node" in refused
    assert await held.ended(leaving) == 0, leaving.read_log()
    assert of_the_driver(held) == {}


async def test_claims_that_vanished_while_no_driver_was_there_keep_no_node(held):
    serving = await held.start()
    await held.hold(*EVERY_KIND)
    await serving.kill()
    held.kubelet.restart()
    for claim in held.claims.values():
        held.cluster.remove_claim(claim)

    leaving = await held.start(leave=True)

    assert await held.ended(leaving) == 0, leaving.read_log()
    assert set(of_the_driver(held)) <= {"sockets"}  # a killed instance's, as young as that, is left to the kubelet


async def test_another_instance_is_waited_for_and_publishes_nothing_meanwhile(held):
    serving = await held.start()
    leaving = await held.start(leave=True)
    await until(lambda: "another instance of the driver runs here" in leaving.read_log())
    await until(lambda: held.cluster.slices() == [])

    await held.stop(serving)

    assert await held.ended(leaving) == 0, leaving.read_log()
    assert of_the_driver(held) == {}


async def test_who_is_told_to_end_before_leaves_everything_as_it_is_and_says_so(held):
    serving = await held.start()
    await held.hold("whole", "partition")
    await held.stop(serving)
    leaving = await held.start(leave=True)
    await until(lambda: NOT_YET in leaving.read_log())

    status = await held._ended(leaving.stop())

    assert status == 1
    assert "default/whole" in leaving.read_log()
    assert "the driver has not left the node" in leaving.read_log()
    await held.start()
    assert set(held.states().values()) == {"prepared"}
    await held.give_back()
    assert held.left() == {}


async def test_the_pod_of_a_daemonset_stays_when_it_has_left_and_is_ready_only_then(held):
    def ports() -> list[str]:
        lines = [line for line in leaving.read_log().splitlines() if "serving metrics and health" in line]
        return re.findall(r'"port": (\d+)', "".join(lines))

    serving = await held.start()
    await held.hold("whole")
    await held.stop(serving)
    leaving = await held.start("--stay", "--http-endpoint=127.0.0.1:0", leave=True)
    await until(lambda: NOT_YET in leaving.read_log())
    meanwhile = await Scraper(int(ports()[-1])).get("/readyz")

    await held.give_back()
    await held._ended(until(lambda: LEFT in leaving.read_log() and len(ports()) == 2))
    afterwards = await Scraper(int(ports()[-1])).get("/readyz")

    assert meanwhile == (503, "[-] left: the driver has not left this node yet: see the log\nfailed\n")
    assert afterwards == (200, "ok\n")
    assert of_the_driver(held) == {}
    assert await leaving.stop() == 0


async def test_the_driver_comes_back_to_a_node_that_it_has_left(held):
    leaving = await held.start(leave=True)
    assert await held.ended(leaving) == 0, leaving.read_log()

    await held.start()
    await held.hold(*EVERY_KIND)

    await until(lambda: held.cluster.slices() != [])
    await held.give_back()
    assert held.left() == {}


async def test_leaving_twice_is_leaving(held):
    for _ in range(2):
        leaving = await held.start(leave=True)
        assert await held.ended(leaving) == 0, leaving.read_log()
    assert of_the_driver(held) == {}


async def test_a_node_that_was_drained_deleted_and_rebooted_serves_again_when_it_is_back(held):
    serving = await held.start()
    await held.hold(*EVERY_KIND)
    await held.give_back()  # a drain evicts the pods; the driver's own, of a DaemonSet, stay until the node goes
    await held.stop(serving)
    held.cluster.api.remove("nodes", held.cluster.node_name)
    for item in held.cluster.slices():  # as the garbage collector does
        held.cluster.api.remove("resourceslices", item["metadata"]["name"])
    await held.sharing.service.stop()
    held.sharing.service = None
    held.node.reboot()
    back = held.cluster.api.put(
        "nodes", {"metadata": {"name": held.cluster.node_name}, "status": {"allocatable": {"cpu": "2"}}}
    )

    await held.start()
    await held.cluster.wait_slices(DEVICES)
    await held.hold(*EVERY_KIND)

    owners = {item["metadata"]["ownerReferences"][0]["uid"] for item in held.cluster.slices()}
    assert owners == {back["metadata"]["uid"]}
    await held.give_back()
    assert held.left() == {}
