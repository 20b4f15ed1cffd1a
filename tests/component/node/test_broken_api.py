"""An API server, or something in its place, that answers nonsense: the node waits, and then is as it should be."""

import asyncio
import contextlib
import json

import pytest

from dra_gpu_sim.apiserver import resources
from dra_gpu_sim.apiserver.server import ApiServer, ServerOptions
from dra_gpu_sim.local.cluster import DRIVER
from tests.component.node.node_under_fire import SOON_REFUSED, status_of, until

VIEWS = "--views=gpu,monitor"
JSON = "Content-Type: application/json"


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers))
    return head.encode() + b"\r\n\r\n" + body


CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
NONSENSE = {
    "html": answer(b"<html>Service is being upgraded</html>", "200 OK", "Content-Type: text/html"),
    "array": answer(b"[1, 2, 3]", "200 OK", JSON),
    "null": answer(b"null", "200 OK", JSON),
    "empty": answer(b"", "200 OK", JSON),
    "wrong-types": answer(b'{"metadata": {"name": 5}, "items": {"a": 1}, "status": [], "spec": "x"}', "200 OK", JSON),
    "deep": answer(b'{"metadata":{"name":"x"},"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "200 OK", JSON),
    "not-utf8": answer(
        b'{"metadata": {"name": "\xff\xfe"}, "items": [{"metadata": {"name": "\xff"}}]}', "200 OK", JSON
    ),
    "no-http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "500-html": answer(b"<html>" + b"x" * 3_000_000, "500 Oops", "Content-Type: text/html"),
    "403": answer(b"{}", "403 Forbidden", JSON),
    "401": answer(b"", "401 Unauthorized"),
    "409": answer(b'{"kind": "Status", "message": 7}', "409 Conflict", JSON),
    "418": answer(b"short and stout", "418 Teapot"),
    "redirect": answer(b"", "302 Found", "Location: http://127.0.0.1:1/"),
    "endless-200": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "endless-500": b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
}


@contextlib.asynccontextmanager
async def replaced_by(api: ApiServer, nonsense: bytes):
    """Let something answer in the place of the API server, the same to everything."""
    api.refuse()

    writers: list[asyncio.StreamWriter] = []
    ended = False

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if ended:  # it was accepted in the last moment
            writer.transport.abort()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(nonsense)
                await writer.drain()
                for _ in range(1_600 if nonsense.endswith(CHUNK) else 0):
                    writer.write(CHUNK)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", api.port)
    try:
        yield
    finally:
        ended = True
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()
        await api.reopen()


@pytest.mark.parametrize("kind", list(NONSENSE))
async def test_nonsense_from_the_api_server_is_waited_out(make_world, kind):
    world = await make_world(gpus=1)
    await world.start(devices=2)
    claim = world.claim("job", "gpu-0")
    memory = status_of(world.plugin.pid, "VmRSS")

    async with replaced_by(world.api, NONSENSE[kind]):
        refused = (await world.prepare(claim, within=5.5))[claim.uid]
        assert claim.uid in refused.error
        assert len(refused.error) < 2_000
    assert world.plugin.process.returncode is None, world.plugin.read_log()[-3_000:]

    for item in world.cluster.slices():
        world.api.remove("resourceslices", item["metadata"]["name"])
    world.kubelet.restart()
    await world.kubelet.wait_registered(DRIVER)
    await world.cluster.wait_slices(2, within=90)
    await world.prepared(claim)
    assert status_of(world.plugin.pid, "VmRSS") - memory < 24 * 1024
    assert all(len(line) < 8_000 for line in world.plugin.read_log().splitlines())


@pytest.mark.parametrize("kind", ["html", "deep", "not-utf8", "401"])
async def test_an_instance_that_starts_into_nonsense_publishes_when_it_ends(make_world, kind):
    world = await make_world(gpus=1)

    async with replaced_by(world.api, NONSENSE[kind]):
        world.plugin = await world.cluster.start_plugin(VIEWS)
        await world.kubelet.wait_registered(DRIVER)
        await asyncio.sleep(0.7)
    assert world.plugin.process.returncode is None, world.plugin.read_log()[-3_000:]

    await world.cluster.wait_slices(2, within=90)


async def test_an_unreadable_answer_to_a_write_does_not_end_publishing(make_world):
    world = await make_world(gpus=1)
    handle, left = world.api.handlers.handle, [3]

    def odd(where, body, content_type):
        result = handle(where, body, content_type)
        if where.verb == "create" and where.served.plural == "resourceslices" and left[0]:
            left[0] -= 1
            return 201, "<html>created</html>"
        return result

    world.api.handlers.handle = odd

    await world.start(devices=2)


@pytest.mark.parametrize("status", [403, 409, 429, 500])
async def test_a_storm_of_refused_writes_ends_in_the_wanted_slices(make_world, status):
    world = await make_world(gpus=1)
    headers = {"Retry-After": "1"} if status == 429 else {}
    for verb in ("create", "update", "delete"):
        world.api.faults.fail(status=status, verb=verb, resource="resourceslices", count=4, headers=headers)

    await world.start()
    await world.cluster.wait_slices(2, within=90)

    assert len(world.api.log.writes_since(resource="resourceslices")) < 20


async def test_a_wait_of_centuries_is_not_obeyed(make_world):
    world = await make_world(gpus=1)
    world.api.faults.fail(
        status=429, verb="create", resource="resourceslices", count=1, headers={"Retry-After": "9" * 400}
    )
    await world.start()

    def retries() -> list[float]:
        whole_lines = world.plugin.read_log().rpartition("\n")[0].splitlines()
        return [json.loads(line).get("retry_in") for line in whole_lines if "retry_in" in line]

    await until(retries)

    assert max(retries()) < 400
    assert world.plugin.process.returncode is None


def contents(world) -> list[dict]:
    """Return what the slices say, without the generation, which may rise."""
    return [{**item["spec"], "pool": item["spec"]["pool"]["name"]} for item in world.cluster.slices()]


async def test_slices_that_somebody_edits_are_put_right(make_world):
    world = await make_world(gpus=2)
    await world.start(devices=4)
    served = resources.by_plural("resourceslices")
    before = contents(world)
    for item in world.api.objects("resourceslices"):
        spoilt = json.loads(json.dumps(item))
        for device in spoilt["spec"].get("devices", ()):
            device["attributes"]["uuid"] = {"string": "GPU-evil"}
        for counters in spoilt["spec"].get("sharedCounters", ()):
            counters["counters"]["memory"]["value"] = "1Ti"
        world.api.store.replace(served, "", item["metadata"]["name"], spoilt, status_only=False)

    await world.api.log.wait_for(lambda _: contents(world) == before)


async def test_without_a_node_object_nothing_is_published_and_then_it_is(make_world):
    world = await make_world(gpus=1)
    world.api.remove("nodes", "node-0")
    await world.start()
    await until(lambda: "the Node object cannot be read" in world.plugin.read_log())
    assert world.cluster.slices() == []

    world.api.put("nodes", {"metadata": {"name": "node-0"}, "status": {"allocatable": {"cpu": "2"}}})

    await world.cluster.wait_slices(2)


async def test_a_node_that_is_deleted_and_made_again_owns_its_slices(make_world):
    world = await make_world(gpus=1)
    await world.start(devices=2)
    world.api.remove("nodes", "node-0")
    for item in world.cluster.slices():  # as the garbage collector does
        world.api.remove("resourceslices", item["metadata"]["name"])
    node = world.api.put("nodes", {"metadata": {"name": "node-0"}, "status": {"allocatable": {"cpu": "2"}}})

    await world.cluster.wait_slices(2)

    owners = {item["metadata"]["ownerReferences"][0]["uid"] for item in world.cluster.slices()}
    assert owners == {node["metadata"]["uid"]}
    await world.prepared(world.claim("job", "gpu-0"))


async def test_no_token_stands_in_the_log(make_world):
    secret = "eyJhbGciOiJSUzI1NiJ9.very-secret"
    world = await make_world(gpus=1, api=ApiServer(ServerOptions(tokens=["another"])))
    config = json.loads(world.cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": secret}
    world.cluster.kubeconfig.write_text(json.dumps(config))

    world.plugin = await world.cluster.start_plugin("--log-level=debug", VIEWS)
    await world.kubelet.wait_registered(DRIVER)
    await until(lambda: "401" in world.plugin.read_log())
    claim = world.claim("job", "gpu-0")
    refused = (await world.prepare(claim, within=SOON_REFUSED))[claim.uid]

    assert "401" in refused.error
    assert secret not in refused.error
    assert secret not in world.plugin.read_log()
