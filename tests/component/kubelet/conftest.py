"""A server of a driver with a service that a test holds the reins of."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from dra_gpu.kubelet import registration, server
from dra_gpu.kubelet.server import KubeletServer
from dra_gpu.kubelet.service import ClaimError, ClaimRef, PreparedClaim, PreparedDevice
from dra_gpu.kubelet.sockets import socket_paths
from tests.component.kubelet.fake_kubelet import PATIENCE, FakeKubelet

DRIVER = "gpu.nvidia.com"


class ScriptedService:
    """Prepares any claim with one device, unless told to fail or to wait."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.failure: Exception | None = None
        self.cancelled = False
        self.finished = 0

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PreparedClaim | ClaimError]:
        await self._work(deadline)
        return {claim.uid: self._answer(claim) for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, ClaimError | None]:
        await self._work(deadline)
        return {claim.uid: ClaimError("gpu-0 is gone") if "bad" in claim.name else None for claim in claims}

    async def _work(self, deadline: float) -> None:
        assert deadline > asyncio.get_running_loop().time()
        self.entered.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.failure is not None:
            raise self.failure
        self.finished += 1

    def _answer(self, claim: ClaimRef) -> PreparedClaim | ClaimError:
        if "bad" in claim.name:
            return ClaimError(f"claim {claim}: gpu-0 is gone")
        cdi = (f"k8s.{DRIVER}/claim={claim.uid}-gpu-0", f"k8s.{DRIVER}/claim={claim.uid}")
        share = "11111111-2222-3333-4444-555555555555" if "share" in claim.name else None
        return PreparedClaim((PreparedDevice(("gpu", "spare"), "node-a", "gpu-0", cdi, share),))


class Node:
    """The kubelet's directories and the servers that were started in them."""

    def __init__(self, root: Path) -> None:
        self.registry = root / "plugins_registry"
        self.plugins = root / "plugins"
        self.servers: list[KubeletServer] = []

    async def start(self, service: ScriptedService, pod_uid: str | None = None, **options) -> KubeletServer:
        paths = socket_paths(self.registry, self.plugins, DRIVER, pod_uid)
        started = KubeletServer(DRIVER, paths, service, f"0.1.0/{pod_uid}", **options)
        await started.start()
        self.servers.append(started)
        return started


async def in_the_middle_of_a_prepare(
    node: Node, service: ScriptedService, kubelet: FakeKubelet
) -> tuple[KubeletServer, str, asyncio.Future]:
    """A registered server whose service works on claim `uid-1` until it may go on; its endpoint and the call."""
    server = await node.start(service)
    endpoint = (await kubelet.register(server.paths.registration)).endpoint
    service.go_on.clear()
    call = asyncio.ensure_future(kubelet.prepare(endpoint, ("default", "one", "uid-1")))
    await service.entered.wait()
    return server, endpoint, call


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's: pytest's own grow with the run and the worker."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        yield Path(name)


@pytest.fixture
async def node(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(server, "DEREGISTRATION_SECONDS", PATIENCE)
    monkeypatch.setattr(registration, "RECONNECT_SECONDS", 0.01)
    node = Node(short_path)
    yield node
    for started in node.servers:
        started.running.close()
        await started.running.cancel(1)
        started.registration.close()
        await started._registry.close(0.1)
        await started._dra.close(0.1)


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
async def kubelet() -> AsyncIterator[FakeKubelet]:
    kubelet = FakeKubelet()
    yield kubelet
    kubelet.stop()
