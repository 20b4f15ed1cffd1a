"""`python -m lab.forward ADDRESS:PORT ADDRESS:PORT`: hands connections on to the second address.

In place of kube-proxy, for the one Service that pods need: `kubernetes`, the API server.
"""

import asyncio
import contextlib
import sys

_CHUNK = 64 * 1024
_CONNECT_SECONDS = 10.0


async def serve(listen: tuple[str, int], target: tuple[str, int]) -> None:
    """Serve until cancelled."""

    async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                there, back = await asyncio.open_connection(*target)
        except (OSError, TimeoutError):
            writer.close()
            return
        ways = [asyncio.ensure_future(_copy(reader, back)), asyncio.ensure_future(_copy(there, writer))]
        try:
            # Both ways end by themselves when one side has closed: its end is handed on.
            await asyncio.wait(ways)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, back):
                end.close()

    server = await asyncio.start_server(hand_on, *listen)
    async with server:
        await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    asyncio.run(serve(_address(sys.argv[1]), _address(sys.argv[2])))
