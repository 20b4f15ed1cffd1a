"""Stopping: running calls get their answers, new ones a reason, and nothing is left behind."""

import asyncio

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from dra_gpu.kubelet import server as server_module
from dra_gpu.kubelet.server import DrainReport
from tests.component.kubelet.conftest import Node, ScriptedService, in_the_middle_of_a_prepare
from tests.component.kubelet.fake_kubelet import PATIENCE, FakeKubelet, until_removed

TWO = ("default", "two", "uid-2")


@pytest.mark.case("C31")
async def test_a_running_prepare_is_finished_and_answered_before_the_registration_goes(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
):
    server, endpoint, call = await in_the_middle_of_a_prepare(node, service, kubelet)

    stop = asyncio.ensure_future(server.stop())
    await asyncio.sleep(0)
    assert server.paths.registration.exists()
    service.go_on.set()

    assert (await call).claims["uid-1"].error == ""
    await until_removed(server.paths.registration)
    kubelet.deregister(endpoint)
    assert await stop == DrainReport(finished=True, abandoned=0)
    assert list(node.registry.iterdir()) == []
    assert list(server.paths.service.parent.iterdir()) == []


@pytest.mark.case("C31")
async def test_a_new_call_during_the_drain_is_refused_with_the_reason(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
):
    server, endpoint, first = await in_the_middle_of_a_prepare(node, service, kubelet)
    stop = asyncio.ensure_future(server.stop())
    await asyncio.sleep(0)

    refused = await kubelet.prepare(endpoint, TWO)

    assert "is stopping and takes no new calls" in refused.claims["uid-2"].error
    service.go_on.set()
    assert (await first).claims["uid-1"].error == ""
    kubelet.stop()
    await stop


async def test_a_call_between_deregistration_and_the_kubelets_hang_up_still_gets_an_answer(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)
    stop = asyncio.ensure_future(server.stop())
    await until_removed(server.paths.registration)

    refused = await kubelet.prepare(info.endpoint, TWO)

    assert "takes no new calls" in refused.claims["uid-2"].error
    kubelet.stop()
    await stop


@pytest.mark.case("C31")
async def test_a_call_that_outlasts_the_grace_is_cancelled_and_answered(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
):
    server, _, call = await in_the_middle_of_a_prepare(node, service, kubelet)

    stop = asyncio.ensure_future(server.stop(grace=0.05))

    assert "stopped in the middle" in (await call).claims["uid-1"].error
    assert service.cancelled
    kubelet.stop()
    assert await stop == DrainReport(finished=False, abandoned=0)


async def test_work_that_ignores_its_cancellation_does_not_hold_the_stop_up(
    node: Node, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_module, "UNDO_SECONDS", 0.05)
    monkeypatch.setattr(server_module, "DEREGISTRATION_SECONDS", 0.05)
    service = DeafService()
    server, _, call = await in_the_middle_of_a_prepare(node, service, kubelet)

    report = await server.stop(grace=0.05)

    assert report == DrainReport(finished=False, abandoned=1)
    service.go_on.set()
    with pytest.raises(Exception, match=r"Connection lost|terminated"):
        await call


async def test_while_stopping_no_kubelet_can_register_the_driver(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
):
    server, _, call = await in_the_middle_of_a_prepare(node, service, kubelet)
    stop = asyncio.ensure_future(server.stop())
    await asyncio.sleep(0)

    with pytest.raises(GRPCError) as refused:
        await FakeKubelet().info(server.paths.registration)

    assert refused.value.status is Status.UNAVAILABLE
    service.go_on.set()
    await call
    kubelet.stop()
    await stop


async def test_an_idle_server_nobody_registered_waits_for_no_kubelet(
    node: Node, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_module, "DEREGISTRATION_SECONDS", 10 * PATIENCE)
    server = await node.start(service)

    async with asyncio.timeout(PATIENCE):
        assert await server.stop() == DrainReport(finished=True, abandoned=0)

    assert not server.registration.registered.is_set()


async def test_a_kubelet_that_does_not_hang_up_is_waited_for_only_so_long(
    node: Node, service: ScriptedService, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_module, "DEREGISTRATION_SECONDS", 0.05)
    server = await node.start(service)
    await kubelet.register(server.paths.registration)

    async with asyncio.timeout(PATIENCE):
        await server.stop()

    assert not server.paths.service.exists()


async def test_stopping_twice_is_stopping_once(node: Node, service: ScriptedService):
    server = await node.start(service)

    assert await asyncio.gather(server.stop(), server.stop()) == [DrainReport(finished=True, abandoned=0)] * 2


class DeafService(ScriptedService):
    """Does not let itself be cancelled."""

    async def _work(self, deadline: float) -> None:
        del deadline
        self.go_on.clear()
        self.entered.set()
        while not self.go_on.is_set():
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled = True
