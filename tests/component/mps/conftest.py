"""`dra-gpu mps` as a process on a simulated node, and programs that compute on its GPUs."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import pytest

from dra_gpu.mps.client import MpsClient
from dra_gpu.mps.process import PID_FILE
from dra_gpu.mps.service import Share
from dra_gpu_sim.client import CudaClient
from dra_gpu_sim.mounts import unmount_all
from dra_gpu_sim.node import SimulatedNode

CLASSIC, NAMESPACE = "580.65.06", "615.71.05"


class Service:
    """A node and the service on it."""

    def __init__(self, root: Path, driver: str, *, profile: str = "H100") -> None:
        self.node = SimulatedNode.create(root / "n", profile, gpus=2, driver_version=driver, seed="test")
        self.root = root
        self.driver = driver
        self.gpu, self.other = self.node.uuids[:2]
        self.directory = root / "m"
        self.log = root / "service.log"
        with self.node.state() as state:
            state.mps_start_ms = 0
        # Two Python processes have to start until somebody listens, and the machine may be busy.
        self.client = MpsClient(self.directory / "mps.sock", call_seconds=90.0, absent_seconds=60.0)
        self._supervisor: subprocess.Popen | None = None
        self._stack = ExitStack()

    def start(self, *more: str) -> None:
        """Start the supervisor; the first call waits for the service."""
        command = [
            *(sys.executable, "-m", "dra_gpu", "mps"),
            *("--driver-root", str(self.node.driver_root), "--directory", str(self.directory)),
            *("--boot-id-file", str(self.node.boot_id_file), "--log-level", "debug"),
            *more,
        ]
        environment = {**os.environ, "DRA_GPU_SIM_ROOT": str(self.node.root)}
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(command, env=environment, stderr=log)

    @property
    def server_pid(self) -> int:
        """The service itself, below its supervisor."""
        pid = self._supervisor.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):  # one that has ended is collected meanwhile
                if b"serve" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        raise AssertionError("no service runs")

    def stop(self) -> int:
        """Stop it as the kubelet does when its pod is deleted; its exit status."""
        self._supervisor.terminate()
        status = self._supervisor.wait(60)
        self._supervisor = None
        return status

    def kill_supervisor(self) -> None:
        """End the first process of the pod as the kernel does when memory runs out."""
        self._supervisor.kill()
        self._supervisor.wait()
        self._supervisor = None

    def modes(self) -> list[int]:
        """The truth about the GPUs' compute modes."""
        return [gpu.compute_mode for gpu in self.node.gpus]

    def daemon_pids(self) -> list[int]:
        return [int(path.read_text()) for path in self.directory.glob(f"*/pipe/{PID_FILE}")]

    def attach(self, share: Share) -> CudaClient:
        """Start a program that follows the share's directory."""
        return self._client(Path(share.pipe_directory))

    def attach_in_container(self, share: Share, *, user: int) -> CudaClient:
        """Start a program of another user, to whom the share's directory is mounted and nothing else is open."""
        mounted = self.root / "mounted"
        mounted.mkdir()
        self.root.chmod(0o755)
        subprocess.run(["mount", "--bind", share.pipe_directory, mounted], check=True)
        self._stack.callback(subprocess.run, ["umount", mounted], check=True)
        return self._client(mounted, user)

    def _client(self, pipe: Path, user: int | None = None) -> CudaClient:
        client = self._stack.enter_context(self.node.client(pipe=pipe, gpus=[0], user=user))
        assert client.attached.startswith("attached"), client.attached
        return client

    async def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        """Wait for something that other processes do."""
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.02)

    def close(self) -> None:
        self._stack.close()
        if self._supervisor is not None:
            self.stop()
        for pid in self.daemon_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        unmount_all(self.root)


@pytest.fixture
async def make_service() -> AsyncIterator[Callable[..., Service]]:
    """Make services that end with the test; socket paths must be short, so not pytest's own directory."""
    async with AsyncExitStack() as stack:

        def make(driver: str = NAMESPACE, *, started: bool = True, **options) -> Service:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dm-")))
            service = Service(root, driver, **options)
            stack.callback(service.close)
            if started:
                service.start()
            return service

        yield make


@pytest.fixture(params=[CLASSIC, NAMESPACE], ids=["classic", "namespaces"])
def service(request, make_service) -> Service:
    """A running service, once for each protocol."""
    return make_service(request.param)
