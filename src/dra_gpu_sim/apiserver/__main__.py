"""Run the server as a process: ``python -m dra_gpu_sim.apiserver --port 0 --port-file F``."""

import argparse
import asyncio
import contextlib
import signal
import ssl
from pathlib import Path

from dra_gpu_sim.apiserver.server import ApiServer, ServerOptions
from dra_gpu_sim.apiserver.slice_rules import DROPPABLE


def main() -> None:
    """Parse the arguments and serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="dra_gpu_sim.apiserver", description="A Kubernetes API server in memory, for tests."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--port-file", type=Path, help="written, atomically, once the server listens")
    parser.add_argument(
        "--token", action="append", default=[], help="accepted bearer token; may be given several times"
    )
    parser.add_argument(
        "--gate-off", action="append", default=[], choices=sorted(DROPPABLE), help="drop that gate's fields from slices"
    )
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> None:
    context: ssl.SSLContext | None = None
    if arguments.tls_cert:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(arguments.tls_cert, arguments.tls_key)
    server = ApiServer(ServerOptions(tokens=arguments.token, gates_off=arguments.gate_off))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start(arguments.host, arguments.port, context)
    if arguments.port_file:
        _publish_port(arguments.port_file, server.port)
    print(server.url, flush=True)
    await stop.wait()
    await server.stop()


def _publish_port(path: Path, port: int) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(f"{port}\n", encoding="ascii")
    temporary.replace(path)


if __name__ == "__main__":
    main()
