"""The small server: its paths and nothing else, whoever talks to it."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from dra_gpu.metrics import endpoint
from dra_gpu.metrics.address import Address
from dra_gpu.metrics.endpoint import Endpoint, Response, routes
from dra_gpu.metrics.health import Check
from dra_gpu.metrics.registry import Registry


@asynccontextmanager
async def serving(handlers, **options):
    served = Endpoint(handlers, **options)
    port = await served.start(Address("127.0.0.1", 0))
    yield port
    await served.close()


async def send(port: int, raw: bytes) -> bytes:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        answer = await reader.read()
        writer.close()
        return answer


def request(path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n".encode()


async def fine() -> str:
    return ""


async def broken() -> str:
    raise OSError("the disk is gone")


async def test_it_serves_metrics_health_and_readiness_with_the_reason():
    handlers = routes(Registry("test"), "/m", (Check("journal", fine),), (Check("registered", broken),))
    async with serving(handlers) as port:
        metrics, alive, ready = [await send(port, request(path)) for path in ("/m?x=1", "/healthz", "/readyz")]

    assert b"text/plain; version=0.0.4" in metrics
    assert b"dra_gpu_build_info" in metrics
    assert alive.startswith(b"HTTP/1.1 200")
    assert alive.endswith(b"[+] journal\nok\n")
    assert ready.startswith(b"HTTP/1.1 503")
    assert b"[-] registered: OSError: the disk is gone" in ready


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request("/"), 404),
        (request("/../../etc/passwd"), 404),
        (request("/healthz", "POST", "Content-Length: 0\r\n"), 405),
        (request("/healthz", "HEAD"), 200),
        (request("/healthz").replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\nabc"), 200),
    ],
)
async def test_other_requests_get_a_plain_answer(raw, status):
    async with serving(routes(Registry("test"), "/metrics")) as port:
        answer = await send(port, raw)

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
        b"\0" * 10,
        b"\r\n\r\n\r\n",
    ],
)
async def test_nonsense_is_hung_up_on_and_the_server_goes_on(raw):
    async with serving(routes(Registry("test"), "/metrics")) as port:
        with suppress(ConnectionError):  # hung up on before everything was sent
            assert await send(port, raw + b"\r\n\r\n") == b""
        assert (await send(port, request("/healthz"))).startswith(b"HTTP/1.1 200")


async def test_one_connection_serves_scrape_after_scrape():
    async with serving(routes(Registry("test"), "/metrics")) as port, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_two_hundred_who_say_nothing_keep_out_neither_the_kubelet_nor_prometheus():
    async with serving(routes(Registry("test"), "/metrics")) as port, asyncio.timeout(60):
        reader, prometheus = await asyncio.open_connection("127.0.0.1", port)
        prometheus.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"ok\n")
        silent = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(200)]

        assert (await send(port, request("/healthz"))).startswith(b"HTTP/1.1 200")
        prometheus.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        for writer in (prometheus, *silent):
            writer.transport.abort()


async def test_who_does_not_read_his_answer_makes_room_for_others(monkeypatch):
    monkeypatch.setattr(endpoint, "_CONNECTIONS", 2)
    sent = asyncio.Semaphore(0)

    async def much() -> Response:
        sent.release()
        return Response(200, b"x" * 64 * 2**20)

    async with serving({"/much": much, "/healthz": fine_answer}) as port, asyncio.timeout(60):
        deaf = []
        for _ in range(2):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(request("/much"))
            deaf.append(writer)
            await sent.acquire()
            await asyncio.sleep(0)

        assert (await send(port, request("/healthz"))).startswith(b"HTTP/1.1 200")
        for writer in deaf:
            writer.transport.abort()


async def fine_answer() -> Response:
    return Response(200, b"ok")


async def test_while_all_are_being_answered_one_that_comes_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(endpoint, "_CONNECTIONS", 2)
    go_on, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def waits() -> Response:
        begun.release()
        await go_on.wait()
        return Response(200, b"done")

    async with serving({"/waits": waits}, answer_seconds=60) as port, asyncio.timeout(60):
        asking = [asyncio.create_task(send(port, request("/waits"))) for _ in range(2)]
        for _ in asking:
            await begun.acquire()
        with suppress(ConnectionError):
            assert await send(port, request("/waits")) == b""
        go_on.set()
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in await asyncio.gather(*asking))


async def test_a_handler_that_hangs_or_fails_costs_its_own_request():
    async def hangs() -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def fails() -> Response:
        raise ValueError("broken")

    async with serving({"/hangs": hangs, "/fails": fails}, answer_seconds=0.01) as port:
        late, failed = await send(port, request("/hangs")), await send(port, request("/fails"))

    assert late.startswith(b"HTTP/1.1 503")
    assert failed.startswith(b"HTTP/1.1 500")
    assert b"broken" not in failed


@pytest.mark.parametrize(
    ("text", "address"),
    [(":8080", Address("", 8080)), ("127.0.0.1:0", Address("127.0.0.1", 0)), ("[::1]:80", Address("::1", 80))],
)
def test_an_address_is_read(text, address):
    assert Address.parse(text) == address


@pytest.mark.parametrize("text", ["", "8080", "host:", ":70000", "::1:80", ":-1", ":٣"])
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"such as"):
        Address.parse(text)
