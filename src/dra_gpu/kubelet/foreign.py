"""Finds another driver's registration under our driver's name.

Two drivers of one name on a node would publish over each other and prepare each other's claims. The registry directory
tells: each socket there is asked for its name, as the kubelet asks it. Another instance of this driver (there are two
during a rolling update) says so in the metadata of its answer and does not count; what does not answer within the
kubelet's own second cannot be registered and does not count either.
"""

import asyncio
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import structlog
from grpclib.client import Channel

from dra_gpu.kubelet._proto.registration_v1_grpc import RegistrationStub
from dra_gpu.kubelet._proto.registration_v1_pb2 import InfoRequest
from dra_gpu.kubelet.listening import FileIdentity, identify
from dra_gpu.kubelet.registration import INSTANCE_HEADER, PLUGIN_TYPE

ANSWER_SECONDS = 1.0
"""How long a plugin may take to answer `GetInfo`: what the kubelet allows."""

_log = structlog.get_logger(__name__)

_MAX_SOCKETS = 256  # a node has a handful; more means that something litters the directory
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class ForeignRegistration:
    """A plugin of our driver's name that is not ours."""

    socket: Path
    endpoint: str

    def __str__(self) -> str:
        return (
            f"another driver registers the same name at {self.socket} (it serves {self.endpoint}):"
            " uninstall one of the two"
        )


@dataclass(frozen=True, slots=True)
class _Introduction:
    name: str
    endpoint: str
    ours: bool


class RegistrySearch:
    """Looks for foreign registrations of one driver; asks each socket once for as long as it is the same file."""

    def __init__(self, registry_dir: Path, driver: str) -> None:
        self._registry_dir = registry_dir
        self._driver = driver
        self._known: dict[tuple[Path, FileIdentity], _Introduction] = {}

    async def foreign(self, own: Collection[Path] = ()) -> tuple[ForeignRegistration, ...]:
        """Registrations of our name that are not ours, sorted by path; `own` are sockets not to ask."""
        present = {
            (path, identity)
            for path in await asyncio.to_thread(_sockets_below, self._registry_dir)
            if path not in own and (identity := identify(path)) is not None
        }
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(key: tuple[Path, FileIdentity]) -> tuple[tuple[Path, FileIdentity], _Introduction | None]:
            async with slots:
                return key, self._known.get(key) or await _introduction(key[0])

        answers = await asyncio.gather(*(ask(key) for key in present))
        self._known = {key: answer for key, answer in answers if answer is not None}
        return tuple(
            ForeignRegistration(path, answer.endpoint)
            for (path, _), answer in sorted(self._known.items(), key=lambda item: item[0][0])
            if answer.name == self._driver and not answer.ours
        )


def _sockets_below(directory: Path) -> list[Path]:
    """Sockets the kubelet would see: it looks into sub-directories and ignores names with a leading dot."""
    found: list[Path] = []
    for path in directory.rglob("*"):
        try:
            is_socket = stat.S_ISSOCK(path.lstat().st_mode)
        except OSError:
            continue
        if is_socket and not path.name.startswith("."):
            found.append(path)
    return sorted(found)[:_MAX_SOCKETS]


async def _introduction(path: Path) -> _Introduction | None:
    """Ask the plugin behind `path` who it is; None if it does not say, or is no DRA plugin."""
    channel = Channel(path=str(path))
    try:
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            RegistrationStub(channel).GetInfo.open(timeout=ANSWER_SECONDS) as stream,
        ):
            await stream.send_message(InfoRequest(), end=True)
            info = await stream.recv_message()
            ours = INSTANCE_HEADER in (stream.initial_metadata or ())
    except Exception as error:  # noqa: BLE001 - whatever nonsense is spoken there (HTTP/2, protobuf), it is no plugin
        _log.debug("a socket in the registry does not introduce itself", socket=str(path), reason=repr(error))
        return None
    finally:
        channel.close()
    if info is None or info.type != PLUGIN_TYPE:
        return None
    return _Introduction(info.name, info.endpoint, ours)
