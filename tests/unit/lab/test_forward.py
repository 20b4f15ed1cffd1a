"""What stands in for kube-proxy: connections to one address reach another."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from lab import forward


@contextlib.asynccontextmanager
async def forwarded(target: int) -> AsyncIterator[int]:
    """A forwarder to a port of this machine; its own port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    serving = asyncio.ensure_future(forward.serve(("127.0.0.1", port), ("127.0.0.1", target)))
    try:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.01)
        yield port
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with what comes, and end when it ends."""
    writer.write(await reader.read())
    writer.close()


async def test_what_is_sent_arrives_and_so_does_its_end() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    content = b"x" * 300_000
    async with server, forwarded(server.sockets[0].getsockname()[1]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(content)
        writer.write_eof()

        async with asyncio.timeout(30):
            answer = await reader.read()

        assert answer == content
        writer.close()


async def test_nobody_behind_it_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        closed: int = probe.getsockname()[1]
    async with forwarded(closed) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async with asyncio.timeout(30):
            assert await reader.read() == b""

        writer.close()
