"""Sockets of ours and of others: what is replaced, what is left alone, what is made again."""

import asyncio
import shutil
import socket

import pytest

from dra_gpu.kubelet import foreign
from dra_gpu.kubelet.foreign import RegistrySearch
from dra_gpu.kubelet.listening import SocketBusyError, listen_at
from dra_gpu.kubelet.registration import PluginIdentity, Registration, RegistrationState
from tests.component.kubelet.conftest import DRIVER, Node, ScriptedService
from tests.component.kubelet.fake_kubelet import PATIENCE, FakeKubelet

ONE = ("default", "one", "uid-1")


def stale_socket(path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))


async def test_a_socket_left_by_a_killed_process_is_replaced(node: Node, service, kubelet: FakeKubelet):
    stale_socket(node.registry / f"{DRIVER}-reg.sock")
    stale_socket(node.plugins / DRIVER / "dra.sock")

    server = await node.start(service)

    assert (await kubelet.register(server.paths.registration)).name == DRIVER


async def test_a_socket_somebody_listens_at_is_never_taken_away(node: Node, service):
    first = await node.start(service)

    with pytest.raises(SocketBusyError, match=r"another process listens at .*give each instance its pod UID"):
        await node.start(ScriptedService())

    assert first._dra.in_place()
    assert first._registry.in_place()


async def test_a_start_that_fails_at_the_second_socket_leaves_no_first_one(node: Node, service):
    busy = listen_at(node.registry / f"{DRIVER}-reg.sock")

    with pytest.raises(SocketBusyError):
        await node.start(service)

    assert not (node.plugins / DRIVER / "dra.sock").exists()
    busy.sock.close()


async def test_a_plain_file_in_the_way_is_left_alone_and_named(node: Node, service):
    path = node.registry / f"{DRIVER}-reg.sock"
    path.parent.mkdir(parents=True)
    path.write_text("precious")

    with pytest.raises(SocketBusyError, match="is no socket: remove it"):
        await node.start(service)

    assert path.read_text() == "precious"


async def test_a_directory_that_cannot_be_made_is_named(node: Node, service):
    node.registry.parent.joinpath("plugins").write_text("in the way")

    with pytest.raises(OSError, match="plugins"):
        await node.start(service)


async def test_sockets_removed_under_a_running_driver_come_back_and_it_can_be_registered_again(
    node: Node, service, kubelet: FakeKubelet
):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)
    watch = asyncio.ensure_future(server.watch_sockets())

    shutil.rmtree(node.registry)
    shutil.rmtree(node.plugins)
    async with asyncio.timeout(PATIENCE):
        while not (server._dra.in_place() and server._registry.in_place()):
            await asyncio.sleep(0.005)

    assert (await kubelet.prepare(info.endpoint, ONE)).claims["uid-1"].error == ""  # the old connection
    kubelet.stop()
    assert (await kubelet.register(server.paths.registration)).name == DRIVER
    assert (await kubelet.prepare(info.endpoint, ONE)).claims["uid-1"].error == ""  # a new one
    watch.cancel()


async def test_a_socket_that_another_process_has_put_in_place_is_neither_removed_nor_fought_over(node: Node, service):
    server = await node.start(service)
    server.paths.registration.unlink()
    other = listen_at(server.paths.registration)
    watch = asyncio.ensure_future(server.watch_sockets())

    await asyncio.sleep(0.05)  # several looks of the watch
    await server.stop(grace=1)

    assert other.in_place()
    other.sock.close()
    await watch


@pytest.mark.case("C29")
async def test_two_instances_with_pod_uids_have_sockets_of_their_own_and_one_leaves_the_others(
    node: Node, kubelet: FakeKubelet
):
    old = await node.start(ScriptedService(), "pod-a")
    new = await node.start(ScriptedService(), "pod-b")
    await kubelet.register(old.paths.registration)
    info = await kubelet.register(new.paths.registration)
    kubelet.deregister(str(old.paths.service))

    await old.stop(grace=1)

    assert "pod-a" in old.paths.registration.name
    assert "pod-a" in old.paths.service.name
    assert list(node.registry.iterdir()) == [new.paths.registration]
    assert (await kubelet.prepare(info.endpoint, ONE)).claims["uid-1"].error == ""


async def test_another_instance_of_this_driver_is_not_foreign(node: Node):
    mine = await node.start(ScriptedService(), "pod-a")
    await node.start(ScriptedService(), "pod-b")

    assert await RegistrySearch(node.registry, DRIVER).foreign([mine.paths.registration]) == ()


async def test_a_driver_of_our_name_that_is_not_ours_is_found_and_named(node: Node, foreign_plugin):
    path = await foreign_plugin(node.registry / f"{DRIVER}-reg.sock", DRIVER)

    (found,) = await RegistrySearch(node.registry, DRIVER).foreign()

    assert found.socket == path
    assert found.endpoint == "/elsewhere/dra.sock"
    assert "uninstall one of the two" in str(found)


async def test_other_drivers_stale_sockets_and_mute_listeners_are_not_foreign(
    node: Node, foreign_plugin, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(foreign, "ANSWER_SECONDS", 0.5)
    await foreign_plugin(node.registry / "other.example.com-reg.sock", "other.example.com")
    stale_socket(node.registry / "stale-reg.sock")
    mute = listen_at(node.registry / f"{DRIVER}-mute-reg.sock")

    assert await RegistrySearch(node.registry, DRIVER).foreign() == ()
    mute.sock.close()


async def test_a_registry_that_does_not_exist_holds_nobody(node: Node):
    assert await RegistrySearch(node.registry, DRIVER).foreign() == ()


async def test_each_plugin_is_asked_once_for_as_long_as_its_socket_is_the_same(node: Node, foreign_plugin):
    search = RegistrySearch(node.registry, DRIVER)
    path = await foreign_plugin(node.registry / f"{DRIVER}-reg.sock", DRIVER)

    assert len(await search.foreign()) == 1
    assert len(await search.foreign()) == 1
    assert foreign_plugin.asked == 1

    path.unlink()
    assert await search.foreign() == ()


@pytest.fixture
async def foreign_plugin(monkeypatch: pytest.MonkeyPatch):
    """Starts a plugin that registers as a driver of some name and is none of ours."""
    from dra_gpu.kubelet.connections import GrpcSocket

    monkeypatch.setattr(foreign, "ANSWER_SECONDS", PATIENCE)

    class Foreign(Registration):
        async def GetInfo(self, stream) -> None:  # noqa: N802 - the protocol's name
            start.asked += 1
            await stream.recv_message()
            await stream.send_message(self._answer)

    class Start:
        def __init__(self) -> None:
            self.asked = 0
            self.sockets: list[GrpcSocket] = []

        async def __call__(self, path, driver: str):
            identity = PluginIdentity(driver, "/elsewhere/dra.sock", ("v1.DRAPlugin",), "none")
            self.sockets.append(GrpcSocket(path, [Foreign(identity, RegistrationState(driver), lambda: False)]))
            await self.sockets[-1].listen()
            return path

    start = Start()
    yield start
    for started in start.sockets:
        await started.close(1)
