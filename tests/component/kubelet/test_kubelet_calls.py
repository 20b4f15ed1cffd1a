"""Registration, prepare and unprepare over real sockets."""

import asyncio
import stat

import pytest
from grpclib.exceptions import GRPCError

from dra_gpu.kubelet.connections import GrpcSocket
from dra_gpu.kubelet.registration import RegistrationReport
from tests.component.kubelet.conftest import DRIVER, Node, ScriptedService, in_the_middle_of_a_prepare
from tests.component.kubelet.fake_kubelet import PATIENCE, FakeKubelet

ONE = ("default", "one", "uid-1")
BAD = ("default", "bad", "uid-2")
SHARED = ("default", "share", "uid-3")


async def test_get_info_names_the_driver_its_socket_and_exactly_what_is_served(
    node: Node, service, kubelet: FakeKubelet
):
    server = await node.start(service)

    info = await kubelet.info(server.paths.registration)

    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(server.paths.service))
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


async def test_the_service_socket_listens_before_the_registration_socket_appears(
    node: Node, service, monkeypatch: pytest.MonkeyPatch
):
    order = []
    listen = GrpcSocket.listen

    async def note(socket: GrpcSocket) -> None:
        await listen(socket)
        order.append(socket.path.name)

    monkeypatch.setattr(GrpcSocket, "listen", note)
    await node.start(service)

    assert order == ["dra.sock", f"{DRIVER}-reg.sock"]


async def test_sockets_are_for_root_alone(node: Node, service):
    server = await node.start(service)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in (server.paths.registration, server.paths.service)}

    assert modes == {0o600}


async def test_the_driver_is_registered_when_the_kubelet_has_notified_it(node: Node, service, kubelet: FakeKubelet):
    reports: list[RegistrationReport] = []
    server = await node.start(service, report=reports.append)
    assert not server.registration.registered.is_set()

    await kubelet.register(server.paths.registration)

    assert server.registration.registered.is_set()
    assert server.registration.kubelet_connections == 1
    assert reports == [RegistrationReport(registered=True)]


async def test_a_refused_registration_is_reported_with_the_kubelets_reason(node: Node, service, kubelet: FakeKubelet):
    reports: list[RegistrationReport] = []
    server = await node.start(service, report=reports.append)

    await kubelet.refuse(server.paths.registration, "plugin validation failed with err: odd")

    assert "plugin validation failed with err: odd" in reports[0].message


async def test_a_restarted_kubelet_registers_the_running_driver_again(node: Node, service):
    changes: asyncio.Queue[bool] = asyncio.Queue()
    server = await node.start(service, report=lambda report: changes.put_nowait(report.registered))
    first, second = FakeKubelet(), FakeKubelet()

    await first.register(server.paths.registration)
    assert await changes.get()
    first.stop()
    async with asyncio.timeout(PATIENCE):
        assert not await changes.get()
    await second.register(server.paths.registration)

    assert await changes.get()
    assert (await second.prepare(str(server.paths.service), ONE)).claims["uid-1"].error == ""
    second.stop()


async def test_prepare_answers_devices_in_order_and_errors_claim_by_claim(node: Node, service, kubelet: FakeKubelet):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)

    response = await kubelet.prepare(info.endpoint, ONE, BAD)

    assert set(response.claims) == {"uid-1", "uid-2"}
    (device,) = response.claims["uid-1"].devices
    assert list(device.request_names) == ["gpu", "spare"]
    assert (device.pool_name, device.device_name) == ("node-a", "gpu-0")
    assert list(device.cdi_device_ids) == [f"k8s.{DRIVER}/claim=uid-1-gpu-0", f"k8s.{DRIVER}/claim=uid-1"]
    assert not device.HasField("share_id")
    assert "gpu-0 is gone" in response.claims["uid-2"].error
    assert server.running.count == 0


async def test_v1_carries_the_share_id(node: Node, service, kubelet: FakeKubelet):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)

    response = await kubelet.prepare(info.endpoint, SHARED)

    assert response.claims["uid-3"].devices[0].share_id == "11111111-2222-3333-4444-555555555555"


async def test_v1beta1_answers_the_same_without_the_share_id(node: Node, service, kubelet: FakeKubelet):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)

    prepared = await kubelet.prepare_v1beta1(info.endpoint, SHARED, BAD)
    released = await kubelet.unprepare_v1beta1(info.endpoint, SHARED, BAD)

    assert prepared.claims["uid-3"].devices[0].device_name == "gpu-0"
    assert "share_id" not in prepared.claims["uid-3"].devices[0].DESCRIPTOR.fields_by_name
    assert "gpu-0 is gone" in prepared.claims["uid-2"].error
    assert {uid: entry.error for uid, entry in released.claims.items()} == {"uid-3": "", "uid-2": "gpu-0 is gone"}


async def test_unprepare_has_an_entry_for_every_claim(node: Node, service, kubelet: FakeKubelet):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)

    response = await kubelet.unprepare(info.endpoint, ONE, BAD, SHARED)

    assert {uid: entry.error for uid, entry in response.claims.items()} == {
        "uid-1": "",
        "uid-2": "gpu-0 is gone",
        "uid-3": "",
    }


@pytest.mark.case("C08")
async def test_an_exception_behind_a_call_is_an_error_of_its_claims_and_not_of_the_call(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)
    service.failure = RuntimeError("unexpected")

    response = await kubelet.prepare(info.endpoint, ONE, SHARED)

    assert all("RuntimeError: unexpected" in entry.error for entry in response.claims.values())
    assert len(response.claims) == 2


async def test_the_kubelets_deadline_is_answered_before_it_ends(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)
    service.go_on.clear()

    response = await kubelet.prepare(info.endpoint, ONE, timeout=5)

    assert "not done within" in response.claims["uid-1"].error


async def test_a_kubelet_that_goes_away_does_not_cut_the_work_it_asked_for(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
):
    server, _, call = await in_the_middle_of_a_prepare(node, service, kubelet)

    kubelet.stop()
    call.cancel()
    await asyncio.wait({call})
    service.go_on.set()

    assert await server.running.wait_idle(PATIENCE)
    assert service.finished == 1
    assert not service.cancelled


async def test_sixteen_calls_run_at_once(node: Node, service: ScriptedService, kubelet: FakeKubelet):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)
    service.go_on.clear()

    calls = [asyncio.ensure_future(kubelet.prepare(info.endpoint, ("ns", f"c{i}", f"u{i}"))) for i in range(16)]
    async with asyncio.timeout(PATIENCE):
        while server.running.count < 16:
            await asyncio.sleep(0.001)
    service.go_on.set()

    responses = await asyncio.gather(*calls)
    assert [next(iter(response.claims)) for response in responses] == [f"u{i}" for i in range(16)]


async def test_an_unknown_method_is_refused_and_the_server_goes_on(node: Node, service, kubelet: FakeKubelet):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)

    with pytest.raises(GRPCError):
        await _call_registration_on(kubelet, info.endpoint)

    assert (await kubelet.prepare(info.endpoint, ONE)).claims["uid-1"].error == ""


async def test_bytes_that_are_no_http2_end_that_connection_alone(node: Node, service, kubelet: FakeKubelet):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)

    reader, writer = await asyncio.open_unix_connection(info.endpoint)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
    async with asyncio.timeout(PATIENCE):
        await reader.read()
    writer.close()
    await writer.wait_closed()

    assert (await kubelet.prepare(info.endpoint, ONE)).claims["uid-1"].error == ""


async def _call_registration_on(kubelet: FakeKubelet, endpoint: str) -> None:
    from dra_gpu.kubelet._proto.registration_v1_grpc import RegistrationStub
    from dra_gpu.kubelet._proto.registration_v1_pb2 import InfoRequest

    await RegistrationStub(kubelet.channels[endpoint]).GetInfo(InfoRequest(), timeout=PATIENCE)


async def test_ended_calls_of_a_long_connection_are_not_remembered_for_ever(node: Node, service, kubelet: FakeKubelet):
    server = await node.start(service)
    info = await kubelet.register(server.paths.registration)

    for _ in range(1100):
        await kubelet.prepare(info.endpoint)

    (connection,) = server._dra._connections
    assert len(connection._inner.connection._connection._closed_streams) <= 1024
