"""What may come over the wire, and what it is answered. The shipped server, over real TLS."""

import asyncio
import gc
import json
import socket
import ssl
import threading
from asyncio.sslproto import SSLProtocol

import pytest

from dra_gpu.validation.problem import Problem
from dra_gpu.webhook import admission
from dra_gpu.webhook.http_server import Limits
from tests.component.webhook.tls import JSON, PATIENCE
from tests.unit.validation.manifests import claim, config, request
from tests.unit.webhook.questions import review

GOOD = review(claim(request(), configs=[config()]))
BAD = review(claim(request(), configs=[config(more=1)]), uid="11111111-2222-3333-4444-555555555555")
OTHERS = review(claim(request(cls="nic.example.com")))


async def test_one_connection_carries_many_reviews(webhook):
    async with webhook.connected() as client:
        for _ in range(3):
            good, bad = await client.review(GOOD), await client.review(BAD)

            assert good == {"uid": "0b7c", "allowed": True}
            assert bad["uid"] == "11111111-2222-3333-4444-555555555555"
            assert bad["allowed"] is False
            assert "more is not a known field" in bad["status"]["message"]
    assert webhook.counted.reviews[:2] == [
        ("ResourceClaim", "CREATE", "allowed"),
        ("ResourceClaim", "CREATE", "denied"),
    ]


@pytest.mark.case("C137")
@pytest.mark.parametrize("content_type", ["text/plain", "", "application/yaml", "application/jsonx"])
async def test_another_content_type_is_415(webhook, content_type):
    async with webhook.connected() as client:
        status, _, body = await client.request("POST", "/validate", b"{}", {"content-type": content_type})

        assert (status, b"send application/json" in body) == (415, True)
        assert (await client.review(GOOD))["allowed"]
    assert webhook.counted.refusals == [415]


@pytest.mark.case("C137")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"\x00" * 1000,
        json.dumps(GOOD | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
        json.dumps(GOOD | {"request": {**GOOD["request"], "uid": ""}}).encode(),
        b"[" * 1_000_000,
    ],
)
async def test_a_body_that_is_no_review_is_400_and_the_next_one_is_answered(webhook, body):
    async with webhook.connected() as client:
        status, _, text = await client.request("POST", "/validate", body, JSON)

        assert status == 400
        assert len(text) <= 1024
        assert (await client.review(GOOD))["allowed"]


@pytest.mark.case("C137")
async def test_five_mebibytes_are_413_and_read_by_nobody(webhook):
    async with webhook.connected() as client:
        status, headers, _ = await client.request("POST", "/validate", b"x" * 5 * 2**20, JSON)

    assert (status, headers["connection"]) == (413, "close")


@pytest.mark.case("C137")
async def test_a_body_of_unknown_length_is_413_once_it_is_too_long(webhook):
    async with webhook.connected() as client:
        client.writer.write(b"POST /validate HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(81):
            client.writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        client.expect_answer()
        status, _, _ = await client.answer()

    assert status == 413


async def test_a_client_that_asks_whether_to_go_on_is_told_to(webhook):
    async with webhook.connected() as client:
        body = json.dumps(GOOD).encode()

        status, _, _ = await client.request("POST", "/validate", body, JSON | {"expect": "100-continue"})

    assert status == 200


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/validate", 405),
        ("PUT", "/validate", 405),
        ("POST", "/", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "//[", 400),
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/readyz", 200),
    ],
)
async def test_other_methods_and_paths(webhook, method, path, expected):
    async with webhook.connected() as client:
        status, _, _ = await client.request(method, path)

    assert status == expected


@pytest.mark.case("C137")
async def test_what_is_no_http_is_told_so_and_ends_its_connection_alone(serving_webhook):
    async with serving_webhook(Limits(linger_seconds=0.1)) as webhook:
        for text in (b"\x16\x03\x01" * 50 + b"\r\n\r\n", b"GET / FTP/1.1\r\n\r\n", b"x" * 100_000):
            async with webhook.connected() as client:
                client.writer.write(text)

                assert b" 4" in (await client.reader.readline())[:14]
                assert await client.is_closed()
        with socket.create_connection(("127.0.0.1", webhook.server.port)) as plain:
            plain.settimeout(PATIENCE)
            plain.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert not (await asyncio.to_thread(plain.recv, 100)).startswith(b"HTTP")
        async with webhook.connected() as client:
            assert (await client.review(GOOD))["allowed"]


@pytest.mark.case("C137")
async def test_whoever_sends_a_byte_now_and_then_is_sent_away(serving_webhook):
    async with serving_webhook(Limits(request_seconds=3, linger_seconds=0.1)) as webhook:
        async with webhook.connected() as silent, webhook.connected() as head, webhook.connected() as body:
            head.writer.write(b"POST /validate HTTP/1.1\r\nho")
            body.writer.write(b"POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")

            assert b" 408 " in await head.reader.readline()
            assert b" 408 " in await body.reader.readline()
            for client in (silent, head, body):
                assert await client.is_closed()
        async with webhook.connected() as client:
            assert (await client.review(GOOD))["allowed"]


async def test_a_connection_that_waits_for_the_next_review_is_patient(serving_webhook):
    limits = Limits(request_seconds=3, linger_seconds=0.1, idle_seconds=10 * PATIENCE)
    async with serving_webhook(limits) as webhook, webhook.connected() as client:
        await client.review(GOOD)
        async with webhook.connected() as silent:  # is given the time of a request, and no more
            assert await silent.is_closed()

        assert (await client.review(GOOD))["allowed"]


@pytest.mark.case("C137")
async def test_two_hundred_silent_connections_keep_nobody_out(serving_webhook):
    async with serving_webhook(Limits(connections=20)) as webhook:
        context = ssl.create_default_context(cadata=webhook.material.authorities.decode())
        context.check_hostname = False
        silent = [await asyncio.open_connection("127.0.0.1", webhook.server.port, ssl=context) for _ in range(200)]

        async with webhook.connected() as client:
            assert (await client.review(GOOD))["allowed"]
        assert webhook.server.connections <= 21
        assert webhook.counted.dropped >= 180
        for _, writer in silent:
            writer.transport.abort()


@pytest.mark.case("C137")
async def test_connections_that_never_begin_their_tls_are_counted_and_take_no_place_of_who_was_answered(
    serving_webhook,
):
    async with serving_webhook(Limits(connections=20)) as webhook, webhook.connected() as client:
        assert (await client.review(GOOD))["allowed"]
        silent = []
        for _ in range(200):
            silent.append((await asyncio.open_connection("127.0.0.1", webhook.server.port))[1])
            assert webhook.server.connections <= 20
        async with asyncio.timeout(PATIENCE):
            while webhook.counted.dropped < 180:
                await asyncio.sleep(0.01)

        assert (await client.review(GOOD))["allowed"]
        async with webhook.connected() as new:
            assert (await new.review(GOOD))["allowed"]
        for writer in silent:
            writer.transport.abort()


@pytest.mark.case("C137")
async def test_clients_that_are_none_leave_the_buffers_of_few_behind_whatever_they_said(webhook):
    said = [
        b"",
        b"POST /validate HTTP/1.1\r\nho",
        b"POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n{",
        b"POST /validate HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x00" * 1000 + b"\r\n\r\n",
    ]

    def buffers():
        return sum(isinstance(one, SSLProtocol) and one._server_side for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        for text in said * 40:
            async with webhook.connected() as client:
                client.writer.write(text)
                await client.writer.drain()
        async with asyncio.timeout(PATIENCE):
            while webhook.server.connections:
                await asyncio.sleep(0.01)

        assert buffers() <= 64
    finally:
        gc.enable()


async def test_who_sends_a_thousand_requests_at_once_is_answered_in_turn_with_others(webhook):
    async with webhook.connected() as greedy, webhook.connected() as other:
        await other.review(GOOD)
        greedy.writer.write(b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
        while not webhook.counted.refusals:
            await asyncio.sleep(0)

        await other.review(GOOD)

        assert len(webhook.counted.refusals) < 500


@pytest.mark.case("C137")
async def test_where_all_clients_wait_for_an_answer_one_that_comes_is_sent_away(serving_webhook):
    stuck = Stuck()
    async with serving_webhook(Limits(connections=2), check=stuck) as webhook:  # noqa: SIM117 - too long for one line
        async with webhook.connected() as first, webhook.connected() as second:
            asking = [asyncio.create_task(one.review(GOOD)) for one in (first, second)]
            while sum(place.answering for place in webhook.server._listener._places.values()) < 2:
                await asyncio.sleep(0.01)

            with pytest.raises(OSError):  # noqa: PT011 - reset or closed, whatever the errno
                async with webhook.connected() as third:
                    await third.review(GOOD)
            stuck.go_on.set()
            assert [one["allowed"] for one in await asyncio.gather(*asking)] == [True, True]
    assert webhook.counted.dropped >= 1


@pytest.mark.case("C137")
async def test_two_hundred_reviews_at_once_are_all_answered_in_few_threads(webhook):
    async def ask(number):
        async with webhook.connected() as client:
            asked = GOOD | {"request": {**GOOD["request"], "uid": str(number)}}
            return (await client.review(asked))["uid"]

    before = threading.active_count()
    answers = await asyncio.gather(*(ask(number) for number in range(200)))

    assert answers == [str(number) for number in range(200)]
    assert threading.active_count() <= before + 3


async def test_bodies_that_would_fill_the_memory_are_sent_away_until_there_is_room(serving_webhook):
    async with serving_webhook(Limits(body=1000, bodies=1500)) as webhook:
        async with webhook.connected() as first, webhook.connected() as second:
            first.writer.write(b"POST /validate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n" + b"x" * 999)
            while webhook.server._held < 999:
                await asyncio.sleep(0)
            status, _, _ = await second.request("POST", "/validate", b"x" * 600, JSON)
            assert status == 503

            first.writer.transport.abort()
            while webhook.server._held:
                await asyncio.sleep(0)
        async with webhook.connected() as client:
            assert (await client.request("POST", "/validate", b"x" * 600, JSON))[0] == 400


class Stuck:
    """A check that ends when it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def __call__(self, question):
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return admission.problems(question)


async def test_a_check_that_does_not_end_denies_what_is_ours_and_nothing_else(serving_webhook):
    stuck = Stuck()
    async with serving_webhook(check=stuck) as webhook, webhook.connected() as client, webhook.connected() as other:
        for _ in range(4):  # more than there are threads
            given = await client.review(GOOD, "/validate?timeout=200ms")

            assert given["allowed"] is False
            assert given["status"]["message"] == "this object could not be checked in time: try again"
            assert given["status"]["code"] == 503
            assert (await other.review(OTHERS, "/validate?timeout=200ms"))["allowed"]
            assert (await other.request("GET", "/healthz"))[0] == 200
        stuck.go_on.set()
        assert (await client.review(GOOD))["allowed"]
    assert ("ResourceClaim", "CREATE", "unchecked") in webhook.counted.reviews


async def test_a_check_that_breaks_denies_what_is_ours_and_nothing_else(serving_webhook):
    def broken(question):
        raise KeyError("spec")

    async with serving_webhook(check=broken) as webhook, webhook.connected() as client:
        given = await client.review(GOOD)

        assert given["allowed"] is False
        assert "a fault of the webhook: try again" in given["status"]["message"]
        assert (await client.review(OTHERS))["allowed"]


async def test_a_hint_that_breaks_denies_nothing(webhook, monkeypatch):
    monkeypatch.setattr(admission, "hints", lambda _: [Problem] and 1 // 0)

    async with webhook.connected() as client:
        assert (await client.review(OTHERS))["allowed"]


async def test_large_objects_are_read_beside_the_loop(webhook):
    large = claim(request(), configs=[config()])
    large["metadata"]["annotations"] = {"a": "x" * 1_500_000}

    async with webhook.connected() as client:
        assert (await client.review(review(large, operation="UPDATE", old=large)))["allowed"]


async def test_a_stop_answers_what_has_been_asked_and_nothing_more(serving_webhook):
    stuck = Stuck()
    async with serving_webhook(check=stuck) as webhook, webhook.connected() as busy, webhook.connected() as idle:
        await idle.review(OTHERS)
        asking = asyncio.create_task(busy.review(BAD))
        assert await asyncio.to_thread(stuck.begun.wait, PATIENCE)

        stopping = asyncio.create_task(webhook.server.stop(PATIENCE))
        assert await idle.is_closed()
        stuck.go_on.set()

        assert (await asking)["allowed"] is False
        await stopping
        assert await busy.is_closed()
        with pytest.raises(OSError):  # noqa: PT011 - refused, whatever the errno
            await asyncio.open_connection("127.0.0.1", webhook.server.port)
