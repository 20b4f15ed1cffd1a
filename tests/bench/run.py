"""`make bench`: the node plugin on a simulated node, measured by `tests.bench.client`, in one command.

A simulated node of 32 GPUs (so that 32 calls can meet 32 different ones), an API server in memory, and `dra-gpu node`
from the environment that holds what a node gets and nothing else. The start is measured on a node of 8 GPUs. Where a
target is missed, the plugin runs once more under a profiler and the functions that cost most are shown. What a node's
slices make of the scheduler is measured on kube-scheduler's own allocator.
"""

import argparse
import json
import multiprocessing
import os
import pstats
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dra_gpu_sim.local import plugin
from dra_gpu_sim.node import SimulatedNode
from tests.bench import client, health, packing, published, resizes, scheduling
from tests.bench.cluster import Api, ApiError
from tests.bench.figures import Row, over_runs
from tests.bench.plugin import CallFailedError

DRIVER = "gpu.nvidia.com"
PROFILE_LINES = 20
PODS = 64  # more than a GPU has shares, so that none has two
SHARED_GPUS = 8
SECONDS = 30.0  # for anything that is started to be there


@dataclass(frozen=True, slots=True)
class Bed:
    """Where one simulated node and its plugin live."""

    root: Path
    api: str

    @property
    def node_name(self) -> str:
        return f"bench-{self.root.name}"

    @property
    def node(self) -> Path:
        """The simulated GPUs."""
        return self.root / "node"

    @property
    def paths(self) -> plugin.NodePaths:
        """The host side of the node."""
        return plugin.NodePaths(self.root)

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def socket(self) -> Path:
        return self.paths.state / "dra.sock"

    @property
    def registration(self) -> Path:
        return self.paths.kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"

    def command(self, python: str, *before: str) -> str:
        """The plugin's command line."""
        node = SimulatedNode(self.node)
        shipped = plugin.arguments(node, self.paths, node_name=self.node_name, kubeconfig=self.kubeconfig)
        return shlex.join([python, *before, "-m", "dra_gpu", *shipped, "--log-level=warning"])

    def mps_command(self, python: str) -> list[str]:
        """The command line of the MPS service."""
        return [python, "-m", "dra_gpu", *plugin.mps_arguments(SimulatedNode(self.node), self.paths)]


def main() -> int:
    """Measure; 1 when a target was missed, 2 when something did not work at all."""
    options = _parse()
    root = Path(tempfile.mkdtemp(prefix="dra-bench-", dir=options.dir))
    try:
        return _bench(options, root)
    except (CallFailedError, ApiError, OSError, subprocess.SubprocessError) as error:
        client.say(f"{error}; logs are in {root}")
        options.keep = True
        return 2
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)


def _bench(options: argparse.Namespace, root: Path) -> int:
    load = (
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores before the start: below 0.5 the times are comparable"
    )
    with _api_server(root) as api:
        small = _bed(root / "8", api, options.profile, 8)
        client.say("start, on a node of 8 GPUs")
        rows, notes = client.measure(_arguments(options, small, ["gpu-0"], [], "--start-only"))
        large = _bed(root / "32", api, options.profile, options.gpus)
        devices, monitors, partitions = _published(large, options.python)
        client.say(f"calls, on a node of {len(devices)} GPUs")
        more_arguments = [*_shares(large, devices), *_partitions(large, partitions)]
        arguments = _arguments(options, large, devices, monitors, *more_arguments)
        with _in_memory(large.paths.mps), _mps_service(large, options.python):
            more, more_notes = client.measure(arguments)
            notes += [f"directory of the MPS service on {_file_system(large.paths.mps)}"]
        rows = [_named(row, "8 GPUs") for row in rows] + [_named(row, f"{len(devices)} GPUs") for row in more]
        client.say("how soon others know of a GPU that fails")
        sick = over_runs(health.measure(options.runs))
        client.say("how soon capacity moves between claims")
        moved = over_runs(resizes.measure(options.runs))
        scheduler, skipped = _scheduler()
        notes = [*notes, *more_notes, *skipped, f"state directory on {_file_system(root)}", load]
        client.show([*rows, *sick, *moved, *scheduler], notes, options.output)
        missed = [row.key for row in rows if row.verdict == "MISS"]
        if missed and not options.no_profile:
            with _in_memory(large.paths.mps), _mps_service(large, options.python):
                _profile(large, options.python, arguments, missed)
    return int(bool(missed) or any(row.verdict == "MISS" for row in (*sick, *moved, *scheduler)))


def _scheduler() -> tuple[list[Row], list[str]]:
    """What a node's slices cost the scheduler, and how full their order makes the node; notes on what was left out."""
    if shutil.which("go") is None:
        return [], ["scheduler: skipped, Go is not in PATH, and its allocator is a Go library"]
    client.say("what the scheduler does with the slices of a node")
    # In a process of its own: this one has loaded the NVML of the node that was measured before.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        seen = other.submit(published.scan).result(SECONDS)
    return over_runs(scheduling.measure(seen)) + over_runs([packing.figures(packing.compare(seen))]), []


def _shares(bed: Bed, devices: Sequence[str]) -> list[str]:
    """Make pods, as far as somebody looks for them, and name them and the GPUs of which they get shares."""
    pods = [f"bench-pod-{number}" for number in range(PODS)]
    for pod in pods:
        bed.paths.make_pod_cgroup(pod)
    shared = [f"{device}-shared" for device in devices[:SHARED_GPUS]]
    program = str(SimulatedNode(bed.node).mps_control)
    return ["--shared", ",".join(shared), "--pods", ",".join(pods), "--mps-program", program]


def _partitions(bed: Bed, partitions: Sequence[str]) -> list[str]:
    """Name two partitions of one slice of a GPU, and another GPU for NVML alone; nothing where a GPU cannot."""
    node = SimulatedNode(bed.node)
    gpu = len(node.gpus) - 1
    found = [name for name in partitions if re.fullmatch(rf"gpu-{gpu}-mig-1g\d+gb-19-\d", name)][:2]
    return ["--partitions", ",".join(found), "--nvml", str(node.library), "--spare-gpu", str(gpu - 1)] if found else []


@contextmanager
def _in_memory(path: Path) -> Iterator[None]:
    """Have a tmpfs at a path, as a node has below /run; without the right to mount it is an ordinary directory."""
    path.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "bench", path], check=False, capture_output=True)
    try:
        yield
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", path], check=True)


@contextmanager
def _mps_service(bed: Bed, python: str) -> Iterator[None]:
    """Run the MPS service; its daemons go with their last share, and at the latest with it."""
    with (bed.root / "mps.log").open("ab") as log:
        process = subprocess.Popen(bed.mps_command(python), stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(SECONDS)
        for pid in bed.paths.mps.glob("*/pipe/*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


def _arguments(
    options: argparse.Namespace, bed: Bed, devices: Sequence[str], monitors: Sequence[str], *more: str
) -> argparse.Namespace:
    simulator = [sys.executable, "-m", "dra_gpu_sim.cli"]
    node = str(bed.node)
    return client.parse(
        [
            *("--socket", str(bed.socket), "--registration", str(bed.registration)),
            *("--driver", DRIVER, "--pool", bed.node_name, "--api", bed.api, "--state-dir", str(bed.paths.state)),
            *("--devices", ",".join(devices), "--monitors", ",".join(monitors), "--runs", str(options.runs)),
            *("--start", bed.command(options.python), "--log", str(bed.root / "plugin.log")),
            *("--slow-on", shlex.join([*simulator, "inject", node, *shlex.split(options.slow)])),
            *("--slow-off", shlex.join([*simulator, "clear", node])),
            *more,
        ]
    )


def _bed(root: Path, api: str, profile: str, gpus: int) -> Bed:
    """Make a simulated node and the configuration that leads its plugin to the API server."""
    bed = Bed(root, api)
    bed.paths.make()
    node = SimulatedNode.create(bed.node, profile, gpus=gpus, log_calls=False)
    with node.state() as state:
        state.mps_start_ms = 0  # what NVIDIA's daemon takes to start is not ours to measure
        state.cgroup_root = str(bed.paths.cgroups).encode()
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": api}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
    bed.kubeconfig.write_text(json.dumps(kubeconfig))
    with closing(Api(api)) as server:
        server.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": bed.node_name}})
    return bed


def _published(bed: Bed, python: str) -> tuple[list[str], list[str], list[str]]:
    """Start the plugin once and read from its slices: whole GPUs, views that any number may have, partitions."""
    with (bed.root / "plugin.log").open("ab") as log:
        process = subprocess.Popen(shlex.split(bed.command(python)), stdout=log, stderr=log)
    api = Api(bed.api)
    try:
        _register(bed)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            everything = api.call("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
            slices = [item for item in everything if item["spec"].get("nodeName") == bed.node_name]
            devices = [device for item in slices for device in item["spec"].get("devices", [])]
            whole = sorted(device["name"] for device in devices if _type(device) == "gpu")
            monitors = sorted(device["name"] for device in devices if _type(device) == "monitor")
            if whole and monitors and {item["spec"]["pool"]["resourceSliceCount"] for item in slices} == {len(slices)}:
                return whole, monitors, sorted(device["name"] for device in devices if _type(device) == "mig")
            time.sleep(0.05)
        raise CallFailedError(f"no slices were published within {SECONDS:.0f} s")
    finally:
        api.close()
        process.terminate()
        process.wait(SECONDS)


def _register(bed: Bed) -> None:
    import asyncio

    from tests.bench.plugin import register, wait_for_socket

    async def once() -> None:
        await wait_for_socket(bed.registration, SECONDS)
        await register(bed.registration)

    asyncio.run(once())


def _type(device: dict[str, dict[str, dict[str, str]]]) -> str:
    for name, value in device.get("attributes", {}).items():
        if name.rpartition("/")[2] == "type":
            return value.get("string", "")
    return ""


@contextmanager
def _api_server(root: Path) -> Iterator[str]:
    """An API server in memory; gives its address."""
    port_file = root / "port"
    with (root / "apiserver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dra_gpu_sim.apiserver", "--port", "0", "--port-file", str(port_file)],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while not port_file.exists():
            if time.monotonic() > deadline or process.poll() is not None:
                raise CallFailedError("the API server in memory did not start")
            time.sleep(0.02)
        url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        yield url
    finally:
        process.terminate()
        process.wait(SECONDS)


def _profile(bed: Bed, python: str, arguments: argparse.Namespace, missed: Sequence[str]) -> None:
    """Run the plugin once more under the profiler and show where its time goes."""
    client.say(f"missed: {'; '.join(missed)}; once more under the profiler")
    path = bed.root / "profile"
    arguments.runs = 1
    arguments.only = ["fresh", "repeated", "shares", "partitions"]
    arguments.start = bed.command(python, "-m", "cProfile", "-o", str(path))
    client.measure(arguments)
    stats = pstats.Stats(str(path), stream=sys.stderr)
    stats.sort_stats("tottime").print_stats(PROFILE_LINES)
    stats.sort_stats("cumulative").print_stats("/dra_gpu/", PROFILE_LINES)


def _named(row: Row, node: str) -> Row:
    """Say of the figures that depend on it which node they are from."""
    if not row.key.startswith(("RSS", "start")):
        return row
    return Row(f"{row.key}, {node}", row.unit, row.floor, row.low, row.median, row.high, row.target, row.verdict)


def _file_system(path: Path) -> str:
    """Type of the file system that `path` lies on: a durable write costs nothing on some of them."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    real = os.path.realpath(path)
    under = [
        (mount[1], mount[2]) for mount in mounts if real == mount[1] or real.startswith(mount[1].rstrip("/") + "/")
    ]
    return max(under, key=lambda mount: len(mount[0]))[1] if under else "an unknown file system"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench.run", description="Measure the node plugin on a simulated node.")
    parser.add_argument("--python", default=".venv-node/bin/python", help="interpreter of the node's environment")
    parser.add_argument("--profile", default="H100", help="simulated GPU")
    parser.add_argument("--gpus", type=int, default=32)
    parser.add_argument("--slow", default="--call 'nvidia-smi compute-policy' --delay-ms 20", help="what `inject` gets")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where to work; its file system is the one measured")
    parser.add_argument("--keep", action="store_true", help="leave the working directory")
    parser.add_argument("--no-profile", action="store_true", help="do not profile what was missed")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    if not Path(options.python).exists():
        parser.error(f"{options.python} does not exist: `make bench` makes it, or name another one with --python")
    options.python = str(Path(options.python).absolute())
    return options


if __name__ == "__main__":
    sys.exit(main())
