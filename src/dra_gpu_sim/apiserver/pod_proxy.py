"""What stands behind `/api/v1/namespaces/NS/pods/NAME:PORT/proxy/PATH`: a pod's port, asked in the caller's name.

A port is a number here, as for the real server. Source: K8s v1.37 pkg/registry/core/pod/strategy.go, ResourceLocation.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dra_gpu_sim.apiserver.failures import ApiFailureError

_PATH = re.compile(r"/api/v1/namespaces/(?P<ns>[^/]+)/pods/(?P<pod>[^/:]+):(?P<port>[^/]+)/proxy(?P<path>/.*)?")
_SECONDS = 30.0


def wanted(path: str) -> re.Match[str] | None:
    """Return what a path asks for; None when it asks for no pod's port."""
    return _PATH.fullmatch(path)


async def forward(asked: re.Match[str], pods: Sequence[Mapping[str, Any]]) -> bytes:
    """Ask a pod's port, and return what it says.

    Raises:
        ApiFailureError: there is no such pod, it has no address, or it does not answer.
    """
    pod = next(
        (one for one in pods if (one["metadata"]["namespace"], one["metadata"]["name"]) == (asked["ns"], asked["pod"])),
        None,
    )
    if pod is None:
        raise ApiFailureError(404, f'pods "{asked["pod"]}" not found', reason="NotFound")
    address = pod.get("status", {}).get("podIP", "")
    if not address or not asked["port"].isdecimal():
        raise ApiFailureError(400, "address not allowed")
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(address, int(asked["port"]))
            try:
                head = f"GET {asked['path'] or '/'} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                start, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise ApiFailureError(503, f"error trying to reach service: {error}") from error
    status = int(start.split(b" ", 2)[1])
    if status != 200:  # noqa: PLR2004 - HTTP's OK
        raise ApiFailureError(status, body.decode(errors="replace"))
    return body
