"""A client of the webhook as the API server is one: HTTPS with a caBundle and the Service's name."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager

import h11

from dra_gpu.webhook.rotation import Place

#: Seconds for what takes milliseconds: the machine may be busy with something else.
PATIENCE = 30.0
PLACE = Place("dra-gpu", "dra-gpu-webhook-tls", "dra-gpu-webhook", "dra-gpu-webhook")
JSON = {"content-type": "application/json"}


class Client:
    """One connection."""

    def __init__(self, reader, writer) -> None:
        self.reader = reader
        self.writer = writer
        self._protocol = h11.Connection(h11.CLIENT)

    @property
    def certificate(self):
        """The certificate that the server showed, in DER."""
        return self.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

    async def request(self, method, path, body=b"", headers=None):
        """Send a request; returns status, headers and body."""
        named = {"host": "webhook", **(headers or {})}
        if body or method == "POST":
            named = {"content-length": str(len(body))} | named
        head = h11.Request(method=method, target=path, headers=list(named.items()))
        data = self._protocol.send(head)
        if body and "expect" not in named:
            data += self._protocol.send(h11.Data(data=body))
            data += self._protocol.send(h11.EndOfMessage())
        elif not body:
            data += self._protocol.send(h11.EndOfMessage())
        async with asyncio.timeout(PATIENCE):
            self.writer.write(data)
            await self.writer.drain()
            return await self.answer(body if "expect" in named else b"")

    def expect_answer(self):
        """Count a request as sent that was written by hand."""
        self._protocol.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))

    async def answer(self, rest=b""):
        """Read an answer; returns status, headers and body. `rest` is sent when the server asks for it."""
        status, headers, body = 0, {}, b""
        async with asyncio.timeout(PATIENCE):
            while True:
                event = self._protocol.next_event()
                if event is h11.NEED_DATA:
                    self._protocol.receive_data(await self.reader.read(65_536))
                elif isinstance(event, h11.InformationalResponse):
                    self.writer.write(
                        self._protocol.send(h11.Data(data=rest)) + self._protocol.send(h11.EndOfMessage())
                    )
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    headers = {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:
                    raise ConnectionResetError(f"no answer: {event}")
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
        return status, headers, body

    async def review(self, question, path="/validate?timeout=10s"):
        """Ask for a review; returns the response in the answer."""
        status, _, body = await self.request("POST", path, json.dumps(question).encode(), JSON)
        assert status == 200, body
        return json.loads(body)["response"]

    async def is_closed(self):
        """Wait until the server has closed the connection; what it still sends is thrown away."""
        async with asyncio.timeout(PATIENCE):
            try:
                while await self.reader.read(65_536):
                    pass
            except OSError:
                pass
        return True


@asynccontextmanager
async def connected(port, bundle, name=PLACE.names[0]):
    """Connect as an API server does: it trusts the bundle and nothing else, and expects that name.

    Without a bundle, as a kubelet does for a probe: it trusts anybody.
    """
    context = ssl.create_default_context(cadata=bundle.decode() if bundle is not None else None)
    if bundle is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
