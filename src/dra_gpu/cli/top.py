"""What claims use of their GPUs at this moment, and what they may: `kubectl gpu top`.

Who has what and within which limits is the API server's; what is used is told by the metrics of the node plugins, which
are asked through the API server. That needs `get` on `pods/proxy` in the driver's namespace and nothing on the nodes; a
node that does not tell costs its own figures.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dra_gpu.api import quantity, resource_v1
from dra_gpu.apiserver import errors
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.kubernetes_api import Selection
from dra_gpu.apiserver.resources import PODS, RESOURCE_SLICES, Resource
from dra_gpu.cli import listing, refusals
from dra_gpu.cli.cordoning import CLAIMS
from dra_gpu.cli.listing import DRIVER, Holder, ListedGpu
from dra_gpu.inventory import capacities

PLUGINS = "app.kubernetes.io/component=node,resource.dra-gpu.dev/metrics=true"
"""Labels of the node plugins' pods, as the chart gives them where metrics are served."""

_PORT, _PATH_FLAG, _PATH = "metrics", "--metrics-path=", "/metrics"
_AT_ONCE = 16
_SECONDS = 15.0

MEMORY_USED, MEMORY_HELD = "dra_gpu_claim_memory_used_bytes", "dra_gpu_claim_memory_held_bytes"
SM, UNAVAILABLE = "dra_gpu_claim_sm_utilization_ratio", "dra_gpu_claim_usage_unavailable"
GPU_MEMORY, UNATTRIBUTED = "dra_gpu_memory_used_bytes", "dra_gpu_unattributed_memory_bytes"


class ClaimUse(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """What one claim uses of one GPU.

    Attributes:
        claim: `namespace/name`.
        devices: what it has of the GPU.
        sm_percent: percent of the time in which it kept SMs of the GPU busy.
        sm_limit_percent: percent of the SMs that it may have; None where it has all that its device has.
        memory_used: bytes.
        memory_limit: bytes that it has.
        unavailable: why `sm` or `memory` is not told.
    """

    claim: str
    devices: tuple[str, ...]
    sm_percent: float | None = None
    sm_limit_percent: int | None = None
    memory_used: int | None = None
    memory_limit: int | None = None
    unavailable: dict[str, str] = {}


class GpuUse(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """What is used of one GPU.

    Attributes:
        node, name, uuid, product: the GPU.
        memory: bytes that it has.
        memory_used: bytes, whoever has them.
        unattributed: bytes of processes that belong to no claim.
        claims: who has something of it, and what they use.
    """

    node: str
    name: str
    uuid: str
    product: str
    memory: int | None = None
    memory_used: int | None = None
    unattributed: int | None = None
    claims: tuple[ClaimUse, ...] = ()


class Seen(NamedTuple):
    """What was seen, and what could not be told and why."""

    gpus: list[GpuUse]
    problems: tuple[str, ...] = ()


class _Port(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    container_port: int = 0


class _Container(msgspec.Struct, rename="camel", frozen=True):
    args: tuple[str, ...] = ()
    ports: tuple[_Port, ...] = ()


class _PodSpec(msgspec.Struct, rename="camel", frozen=True):
    node_name: str = ""
    containers: tuple[_Container, ...] = ()


class _PodStatus(msgspec.Struct, rename="camel", frozen=True):
    phase: str = ""


class PluginPod(msgspec.Struct, rename="camel", frozen=True):
    """A pod of the node plugin, as far as it is asked for metrics."""

    metadata: resource_v1.ObjectMeta = resource_v1.ObjectMeta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def endpoint(self) -> tuple[int, str] | None:
        """Port and path of its metrics; None where it has none."""
        for container in self.spec.containers:
            for port in container.ports:
                if port.name == _PORT:
                    paths = [arg.removeprefix(_PATH_FLAG) for arg in container.args if arg.startswith(_PATH_FLAG)]
                    return port.container_port, paths[-1] if paths else _PATH
        return None


_PLUGIN_PODS = Resource(PODS.group, PODS.version, PODS.plural, PODS.kind, namespaced=True, type=PluginPod)


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


async def see(api: HttpKubernetesApi, node: str, namespace: str) -> Seen:
    """Look at a cluster.

    Args:
        api: the cluster.
        node: only this node; empty for all.
        namespace: where the driver's pods are; empty to look for them everywhere.

    Raises:
        ApiError: the API server refuses or does not answer.
    """
    chosen = f"spec.driver={DRIVER}" + (f",spec.nodeName={node}" if node else "")
    slices, claims, pods = await asyncio.gather(
        api.list(RESOURCE_SLICES, Selection(field_selector=chosen)),
        api.list(CLAIMS),
        api.list(_PLUGIN_PODS, Selection(namespace, label_selector=PLUGINS)),
    )
    gpus = listing.combine(slices.items, claims.items)
    nodes = dict.fromkeys(gpu.node for gpu in gpus)
    samples, problems = await _ask(api, nodes, pods.items)
    return Seen([use_of(gpu, samples.get(gpu.node)) for gpu in gpus], problems)


async def _ask(
    api: HttpKubernetesApi, nodes: Iterable[str], pods: Sequence[PluginPod]
) -> tuple[dict[str, list[Sample]], tuple[str, ...]]:
    """Return what the node plugins tell, by node, and why others do not."""
    by_node = {pod.spec.node_name: pod for pod in pods if pod.status.phase == "Running" and pod.endpoint is not None}
    room = asyncio.Semaphore(_AT_ONCE)
    samples: dict[str, list[Sample]] = {}
    problems: list[str] = []

    async def ask(node: str) -> None:
        pod = by_node.get(node)
        if pod is None or pod.endpoint is None:
            problems.append(f"node {node}: no pod of the node plugin that serves metrics runs there")
            return
        try:
            async with room:
                said = await api.ask_pod(pod.metadata.name, pod.metadata.namespace, *pod.endpoint, deadline=_SECONDS)
            samples[node] = read_samples(said.decode())
        except (errors.ApiError, ValueError) as error:
            problems.append(f"node {node}: {refusals.told(error)}")

    await asyncio.gather(*(ask(node) for node in nodes))
    return samples, tuple(sorted(problems))


def read_samples(text: str) -> list[Sample]:
    """Return the figures of a scrape.

    Raises:
        ValueError: it is none.
    """
    from prometheus_client.parser import text_string_to_metric_families

    return [
        Sample(one.name, one.labels, one.value)
        for family in text_string_to_metric_families(text)
        for one in family.samples
    ]


def use_of(gpu: ListedGpu, samples: Sequence[Sample] | None) -> GpuUse:
    """Return what is used of a GPU; `samples` are its node's, None where it does not tell."""
    mine = [sample for sample in samples or () if sample.labels.get("gpu") == gpu.name]
    by_claim: dict[str, list[Holder]] = {}
    for holder in gpu.holders:
        if not holder.admin and not holder.growth_of:
            by_claim.setdefault(holder.claim, []).append(holder)
    return GpuUse(
        node=gpu.node,
        name=gpu.name,
        uuid=gpu.uuid,
        product=gpu.product,
        memory=None if gpu.memory == "-" else quantity.parse_int(gpu.memory),
        memory_used=_whole(_value(mine, GPU_MEMORY)),
        unattributed=_whole(_value(mine, UNATTRIBUTED)),
        claims=tuple(
            _of_claim(gpu, claim, holders, mine, told=samples is not None) for claim, holders in by_claim.items()
        ),
    )


def _of_claim(gpu: ListedGpu, claim: str, holders: Sequence[Holder], mine: Sequence[Sample], *, told: bool) -> ClaimUse:
    namespace, _, name = claim.partition("/")
    here = [
        sample for sample in mine if (sample.labels.get("namespace"), sample.labels.get("claim")) == (namespace, name)
    ]
    reasons = {one.labels.get("what", ""): one.labels.get("reason", "") for one in here if one.name == UNAVAILABLE}
    busy = _value(here, SM)
    memory = _in_force(holders, capacities.MEMORY)
    held = _whole(_value(here, MEMORY_HELD))  # what a partition has is told by its node alone
    return ClaimUse(
        claim=claim,
        devices=tuple(dict.fromkeys(holder.device for holder in holders)),
        sm_percent=None if busy is None else round(100 * busy, 1),
        sm_limit_percent=_in_force(holders, capacities.COMPUTE_PERCENT),
        memory_used=_whole(_value(here, MEMORY_USED)),
        memory_limit=next((limit for limit in (memory, held, _all_of(gpu, holders)) if limit is not None), None),
        unavailable=reasons if told else {"memory": "node", "sm": "node"},
    )


def _in_force(holders: Sequence[Holder], name: str) -> int | None:
    """Return how much of a capacity devices have together: what their node says, else what they were allocated."""
    found = [holder.effective.get(name) or holder.capacities.get(name) for holder in holders]
    told = [quantity.parse_int(amount) for amount in found if amount]
    return sum(told) if told else None


def _all_of(gpu: ListedGpu, holders: Sequence[Holder]) -> int | None:
    """Return a GPU's memory where a claim has it whole."""
    whole = all(not holder.profile and not holder.share for holder in holders)
    return quantity.parse_int(gpu.memory) if whole and gpu.memory != "-" else None


def _value(samples: Iterable[Sample], name: str) -> float | None:
    found = [sample.value for sample in samples if sample.name == name]
    return sum(found) if found else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
