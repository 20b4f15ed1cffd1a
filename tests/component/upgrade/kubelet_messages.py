"""What kubelets say to the driver and what they read of its answers, as bytes, recorded with each version's own types.

`fixtures/kubelet-1.NN.json` has for one kubelet `says`: its messages; `reads`: what it makes of the driver's answers in
`fixtures/driver-answers.json`. Record again with `python -m tests.component.upgrade.kubelet_messages`, which needs Go.
"""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase

from dra_gpu.kubelet._proto import dra_v1_pb2, dra_v1beta1_pb2, health_v1alpha1_pb2, registration_v1_pb2
from dra_gpu.kubelet.health import DeviceHealth, HealthFeed, HealthStatus
from dra_gpu.kubelet.server import KubeletServer
from dra_gpu.kubelet.service import ClaimError, ClaimRef, PreparedClaim, PreparedDevice
from dra_gpu.kubelet.sockets import SocketPaths

DRIVER = "gpu.nvidia.com"
KUBELETS = ("1.34", "1.35", "1.36", "1.37")
FIXTURES = Path(__file__).parent / "fixtures"
GENERATOR = Path(__file__).parents[2] / "go-kubelet-messages"
SHARE = "11111111-2222-3333-4444-555555555555"
PATIENCE = 30.0  # seconds for what takes milliseconds: the machine may be busy with something else

REGISTRATION = "/pluginregistration.Registration/"
DRA = {version: f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/" for version in ("v1", "v1beta1")}
MODULES = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
#: Of the health services, the one that every kubelet knows; the other has the same messages.
WATCH = "v1alpha1.NodeWatchResources"
HEALTH = (
    DeviceHealth("node-a", "gpu-0", HealthStatus.HEALTHY),
    DeviceHealth("node-a", "gpu-1-shared", HealthStatus.UNHEALTHY, "XID 79: reset it"),
    DeviceHealth("node-a", "gpu-2", HealthStatus.UNKNOWN),
)
#: Field 77, a string: what a later release might add to a message.
LATER = b"\xea\x04\x05later"


class Raw(CodecBase):
    """Sends and receives bytes as they are."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, _type: object) -> bytes:
        return message

    def decode(self, data: bytes, _type: object) -> bytes:
        return data


class Answering:
    """Prepares a whole GPU, a share and nothing else, and notes who asked for what."""

    def __init__(self) -> None:
        self.asked: list[ClaimRef] = []

    async def prepare(self, claims: Sequence[ClaimRef], _deadline: float) -> Mapping[str, PreparedClaim | ClaimError]:
        self.asked += claims
        return {claim.uid: _answer(claim) for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimRef], _deadline: float) -> Mapping[str, ClaimError | None]:
        self.asked += claims
        return dict.fromkeys((claim.uid for claim in claims), None)


def _answer(claim: ClaimRef) -> PreparedClaim | ClaimError:
    cdi = (f"k8s.{DRIVER}/claim={claim.uid}",)
    match claim.name:
        case "whole":
            return PreparedClaim((PreparedDevice(("gpu",), "node-a", "gpu-0", cdi),))
        case "share":
            return PreparedClaim((PreparedDevice(("part",), "node-a", "gpu-1-shared", cdi, SHARE),))
        case _:
            return ClaimError(f"claim {claim}: gpu-2 is gone: recreate the pod")


def server_in(root: Path, service: Answering) -> KubeletServer:
    """A server with sockets in a directory of a short name."""

    async def health() -> Sequence[DeviceHealth]:
        return HEALTH

    paths = SocketPaths(root / "reg.sock", root / "dra.sock")
    return KubeletServer(DRIVER, paths, service, "0.1.0/a-pod/1", health=HealthFeed(health))


async def call(socket: Path, method: str, request: bytes) -> bytes:
    """Send one message, byte for byte, and return the answer's bytes."""
    channel = Channel(path=str(socket), codec=Raw())
    try:
        answer: bytes = await UnaryUnaryMethod(channel, method, bytes, bytes)(request, timeout=PATIENCE)
    finally:
        channel.close()
    return answer


async def first(socket: Path, method: str, request: bytes) -> bytes:
    """Send one message, byte for byte, and return the bytes of the first that a stream answers."""
    channel = Channel(path=str(socket), codec=Raw())
    try:
        async with (
            asyncio.timeout(PATIENCE),
            UnaryStreamMethod(channel, method, bytes, bytes).open() as stream,
        ):
            await stream.send_message(request, end=True)
            answer = await stream.recv_message()
            await stream.cancel()
    finally:
        channel.close()
    assert answer is not None
    return answer


def normal(name: str, raw: bytes) -> bytes:
    """One of the driver's answers in the one order of its map entries, and without the time of day."""
    message = answer_type(name)()
    message.ParseFromString(raw)
    for device in message.devices if name == WATCH else ():
        assert device.last_updated_time > 0
        device.last_updated_time = 1
    return message.SerializeToString(deterministic=True)


def answer_type(name: str) -> Any:
    """The type of an answer by its name, such as `v1.NodePrepareResources`."""
    version, _, method = name.rpartition(".")
    if name == WATCH:
        return health_v1alpha1_pb2.NodeWatchResourcesResponse
    return registration_v1_pb2.PluginInfo if not version else getattr(MODULES[version], f"{method}Response")


def requests() -> dict[str, bytes]:
    """The driver's own idea of the requests."""
    found = {"GetInfo": b"", WATCH: b""}
    for version, module in MODULES.items():
        claims = [module.Claim(namespace="team", uid=f"uid-{name}", name=name) for name in ("whole", "share", "bad")]
        prepare = module.NodePrepareResourcesRequest(claims=claims)
        found[f"{version}.NodePrepareResources"] = prepare.SerializeToString()
        unprepare = module.NodeUnprepareResourcesRequest(claims=claims[:1])
        found[f"{version}.NodeUnprepareResources"] = unprepare.SerializeToString()
    return found


async def ask(server: KubeletServer, name: str, request: bytes) -> bytes:
    """Send the request of that name to where it belongs."""
    version, _, method = name.rpartition(".")
    if not version:
        return await call(server.paths.registration, REGISTRATION + method, request)
    if name == WATCH:
        return await first(server.paths.service, f"/{version}.DRAResourceHealth/{method}", request)
    return await call(server.paths.service, DRA[version] + method, request)


async def _answers() -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        server = server_in(Path(name), Answering())
        await server.start()
        found = {what: normal(what, await ask(server, what, request)).hex() for what, request in requests().items()}
        info = registration_v1_pb2.PluginInfo.FromString(bytes.fromhex(found["GetInfo"]))
        info.endpoint = "/a/dra.sock"  # the one thing in it that differs from run to run
        found["GetInfo"] = info.SerializeToString(deterministic=True).hex()
        await server.stop()
        return found


def record() -> None:
    """Write all fixtures."""
    answers = json.dumps(asyncio.run(_answers()), indent=2, sort_keys=True) + "\n"
    (FIXTURES / "driver-answers.json").write_text(answers)
    for version in KUBELETS:
        modules = "go.mod" if version == KUBELETS[-1] else f"go-{version}.mod"
        command = ["go", "run", "-mod=readonly", f"-modfile={modules}", "."]
        done = subprocess.run(command, cwd=GENERATOR, input=answers, capture_output=True, text=True, check=True)
        (FIXTURES / f"kubelet-{version}.json").write_text(done.stdout)


if __name__ == "__main__":
    record()
