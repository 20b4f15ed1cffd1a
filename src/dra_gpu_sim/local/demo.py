"""The demonstration: four jobs on one H100, each with 20 % of its SMs and 10 GiB of its memory.

What is printed is read from where a container runtime, a user and the hardware would tell it: the answer to the
kubelet, the CDI files, the claims' status, nvidia-smi and a GPU program inside what each container gets, and the
simulator's own account of what binds each process. Nothing is printed that was not looked up.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_gpu.cli.tables import table
from dra_gpu_sim.client import CudaClient
from dra_gpu_sim.local import pods
from dra_gpu_sim.local.allocator import UnschedulableError
from dra_gpu_sim.local.cluster import DRIVER, LocalCluster
from dra_gpu_sim.local.kubelet import Kubelet
from dra_gpu_sim.local.plugin import PluginProcess
from dra_gpu_sim.local.pods import LocalPod

PERCENT, MEMORY = 20, "10Gi"
_HOLDS_GIB, _MORE_GIB = 9, 4
_VIEWS = "--views=gpu,shared,monitor"  # no partitions: they are another way to divide a GPU
_JOBS = ("train-a", "train-b", "infer-a", "infer-b")
_FIFTH, _SIXTH = "notebook", "too-many"
_LOG_LINES = 5
_GIB = 2**30
_COMPUTE_MODES = {0: "Default", 3: "Exclusive_Process"}  # as nvidia-smi calls them
_LIMITED = ("computePercent", "memory")
_WORTH = {
    "namespace": "MPS limits each process",
    "cgroup": "the kernel driver limits the pod",
    "cooperative": "MPS limits each process by the container's environment",
}


class DemoError(Exception):
    """The demonstration cannot go on; the message says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """What one job got, and what the hardware says of it.

    Attributes:
        pod: its name.
        device: the device the scheduler chose.
        share: id of its share.
        enforced_by: what enforces each capacity, as the claim's status says.
        lifted: capacities whose limit a container can lift, as the claim's status says.
        env: variables that the CDI files set.
        nodes: device nodes in the container.
        nvidia_smi: what `nvidia-smi -L` prints in the container.
        program: what a GPU program in the container sees of its GPU.
        sms: SMs that the hardware lets it use.
        memory_limit: bytes that the hardware lets it use.
        memory_used: bytes it holds.
    """

    pod: str
    device: str
    share: str
    enforced_by: dict[str, str]
    lifted: tuple[str, ...]
    env: dict[str, str]
    nodes: tuple[str, ...]
    nvidia_smi: str
    program: str
    sms: int
    memory_limit: int | None
    memory_used: int


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Everything that was shown.

    Attributes:
        jobs: the four jobs, and the fifth that still fits.
        sixth: why the sixth stays pending.
        over_limit: what a job gets that asks for more memory than its share.
        not_isolated: what the shares have in common all the same.
        released: compute mode of the GPU when all are gone.
    """

    jobs: tuple[JobResult, ...]
    sixth: str
    over_limit: str
    not_isolated: str
    released: int


async def run() -> Demonstration:
    """Run the demonstration, print it, and return what was printed.

    Raises:
        DemoError: a part of it does not start, or refuses a claim.
        BuildError: the simulated GPUs cannot be compiled.
    """
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="dra-gpu-demo-") as directory:
        say("making a node with one simulated H100 (an NVML library, device nodes, sysfs, MPS)")
        async with LocalCluster(Path(directory), gpus=1) as cluster:
            say("starting an API server in memory, `dra-gpu mps`, and `dra-gpu node --vendor nvidia`")
            await cluster.start_mps()
            kubelet = cluster.new_kubelet()
            await _published(cluster, kubelet, await cluster.start_plugin(_VIEWS))
            say("published one GPU as three views: gpu-0 (whole), gpu-0-shared (fractions), gpu-0-monitor")
            with ExitStack() as programs:
                return await _share(cluster, kubelet, programs, say)


async def _share(
    cluster: LocalCluster, kubelet: Kubelet, programs: ExitStack, say: Callable[[str], None]
) -> Demonstration:
    running = [await _start(cluster, kubelet, name, programs) for name in _JOBS]
    say(f"four jobs run, each with computePercent {PERCENT} and memory {MEMORY}; each has allocated {_HOLDS_GIB} GiB")
    jobs = [await _result(pod, client) for pod, client in running]
    print(f"\n{_table(jobs)}\n\n{_legend(jobs)}\n")
    running.append(await _start(cluster, kubelet, _FIFTH, programs))
    jobs.append(await _result(*running[-1]))
    say(f"a fifth ({_FIFTH}) still fits: 100 % of the SMs and 50 GiB are given")
    sixth = await _refused(cluster, kubelet)
    say(f"a sixth ({_SIXTH}) stays pending: {sixth}")
    over_limit = running[0][1].command(f"alloc {_MORE_GIB}G")
    _others_go_on(running[1:])
    say(f"{_JOBS[0]} allocates {_MORE_GIB} GiB more, beyond its {MEMORY}: {over_limit}; the others go on")
    shared = _not_isolated(await running[0][0].wait_status())
    say(f"what MPS does not isolate: {shared}")
    for pod, client in running:
        client.kill()
        await pod.end(kubelet)
    mode = cluster.node.gpus[0].compute_mode
    left = len(cluster.node.snapshot().limits)
    say(f"all gone: the GPU is whole again (compute mode {_COMPUTE_MODES.get(mode, mode)}, {left} limits left)")
    return Demonstration(tuple(jobs), sixth, over_limit, shared, mode)


async def _published(cluster: LocalCluster, kubelet: Kubelet, process: PluginProcess) -> None:
    try:
        await kubelet.wait_registered(DRIVER)
        await cluster.wait_slices(len(_VIEWS.split(",")))
    except TimeoutError as error:
        log = "\n".join(process.read_log().splitlines()[-_LOG_LINES:])
        raise DemoError(f"the node plugin did not register and publish its GPU; its log ends with:\n{log}") from error


async def _start(
    cluster: LocalCluster, kubelet: Kubelet, name: str, programs: ExitStack
) -> tuple[LocalPod, CudaClient]:
    try:
        pod = await pods.start_pod(cluster, kubelet, name, pods.a_share(PERCENT, MEMORY))
    except (UnschedulableError, pods.PodError) as error:
        raise DemoError(str(error)) from error
    client = programs.enter_context(pod.client())
    answer = client.command(f"alloc {_HOLDS_GIB}G")
    if not answer.startswith("ok"):
        raise DemoError(f"the program of pod {name} cannot use its share: {answer}")
    return pod, client


def _others_go_on(others: list[tuple[LocalPod, CudaClient]]) -> None:
    for pod, client in others:
        answer = client.command("info")
        if not answer.startswith("gpu="):
            raise DemoError(f"the program of pod {pod.name} does not go on: {answer}")


async def _refused(cluster: LocalCluster, kubelet: Kubelet) -> str:
    try:
        await pods.start_pod(cluster, kubelet, _SIXTH, pods.a_share(PERCENT, MEMORY))
    except UnschedulableError as error:
        return str(error)
    raise DemoError(f"pod {_SIXTH} got a share of a GPU that had none left")


async def _result(pod: LocalPod, client: CudaClient) -> JobResult:
    [device] = pod.devices
    [status] = await pod.wait_status()
    truth = next(one for one in pod.cluster.node.clients() if one.pid == client.pid)
    capacities: dict[str, Any] = status["data"]["capacities"]
    return JobResult(
        pod=pod.name,
        device=device.device,
        share=device.share_id or "",
        enforced_by={name: capacity["mechanism"] for name, capacity in capacities.items()},
        lifted=tuple(name for name, capacity in capacities.items() if capacity["lifted"]),
        env=pod.container.env,
        nodes=tuple(sorted(pod.container.nodes.values())),
        nvidia_smi=await pod.nvidia_smi(),
        program=client.command("info"),
        sms=truth.sms,
        memory_limit=truth.memory_limit,
        memory_used=truth.memory,
    )


def _not_isolated(devices: list[dict[str, Any]]) -> str:
    notes: list[str] = devices[0]["data"]["notes"]
    return notes[0]


def _table(jobs: list[JobResult]) -> str:
    rows = [
        [
            job.pod,
            f"{job.device}\n{job.share[:8]}…",
            f"{job.sms} SMs\n{_gib(job.memory_limit)}",
            f"{job.enforced_by['computePercent']}\n{job.enforced_by['memory']}",
            _gib(job.memory_used),
            "\n".join(f"{name}={value}" for name, value in sorted(job.env.items())),
            "\n".join(_essential(job.nodes)),
        ]
        for job in jobs
    ]
    header = ["POD", "DEVICE, SHARE", "LIMIT", "ENFORCED BY", "IN USE", "ENVIRONMENT", "DEVICE NODES"]
    return table(header, rows)


def _legend(jobs: list[JobResult]) -> str:
    """Say what the words of ENFORCED BY are worth, and whether a container gets around them."""
    words = sorted({job.enforced_by[name] for job in jobs for name in _LIMITED})
    liftable = sorted({name for job in jobs for name in job.lifted if name in _LIMITED})
    around = f"A container can lift {' and '.join(liftable)}." if liftable else "A container can lift neither."
    meanings = "; ".join(f"{word}: {_WORTH.get(word, 'see README.md')}" for word in words)
    return f"ENFORCED BY  {meanings}. {around}\nIN USE       what was allocated and the program's own CUDA context."


def _essential(nodes: tuple[str, ...]) -> list[str]:
    """Return the GPU's node and the control node; the others are in demo.json."""
    chosen = [node for node in nodes if node == "/dev/nvidiactl" or node[len("/dev/nvidia") :].isdigit()]
    return [*chosen, f"and {len(nodes) - len(chosen)} more"]


def _gib(value: int | None) -> str:
    return "no limit" if value is None else f"{value / _GIB:.1f} GiB"


NEXT = """Try next:
  make test      unit and component tests: faults of GPUs, disks and API servers
  make cluster   the same driver on a real Kubernetes 1.37, built on this machine
  make bench     how fast it is, beside the floor"""
