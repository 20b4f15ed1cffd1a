"""The GPUs of a cluster as its API server knows them: from ResourceSlices, with the holders from ResourceClaims."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from dra_gpu.api import resource_v1
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import from_kubeconfig
from dra_gpu.apiserver.kubernetes_api import Selection
from dra_gpu.apiserver.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_gpu.cli.tables import table
from dra_gpu.inventory import attributes

DRIVER = "gpu.nvidia.com"
_WHOLE = "gpu"


class ListedGpu(msgspec.Struct, rename="camel", frozen=True):
    """One GPU.

    Attributes:
        node: the node it is in.
        name: name of its whole-GPU device.
        product: what the vendor calls it.
        memory: a quantity.
        uuid: the vendor's identity of it.
        views: device names by view.
        taints: keys of the taints on any of its devices.
        holders: claims that have a device of it, `namespace/name`, admin access marked.
    """

    node: str
    name: str
    product: str
    memory: str
    uuid: str
    views: dict[str, str]
    taints: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


async def read(kubeconfig: Path, context: str | None, node: str) -> list[ListedGpu]:
    """Read the GPUs of a cluster.

    Raises:
        ConnectionConfigError: the kubeconfig cannot be used.
        ApiError: the API server refuses or does not answer.
    """
    api = HttpKubernetesApi(from_kubeconfig(kubeconfig, context))
    try:
        chosen = f"spec.driver={DRIVER}" + (f",spec.nodeName={node}" if node else "")
        slices = await api.list(RESOURCE_SLICES, Selection(field_selector=chosen))
        claims = await api.list(RESOURCE_CLAIMS)
    finally:
        api.close()
    return combine(slices.items, claims.items)


def combine(
    slices: Iterable[resource_v1.ResourceSlice], claims: Iterable[resource_v1.ResourceClaim]
) -> list[ListedGpu]:
    """Return the GPUs in the order of nodes and names, with who holds them."""
    holders: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        allocation = claim.status.allocation
        for result in allocation.devices.results if allocation else ():
            if result.driver == DRIVER:
                mark = " (admin)" if result.admin_access else ""
                name = f"{claim.metadata.namespace}/{claim.metadata.name}{mark}"
                holders.setdefault((result.pool, result.device), []).append(name)
    by_uuid: dict[tuple[str, str], list[tuple[resource_v1.ResourceSlice, resource_v1.Device]]] = {}
    for published in slices:
        for device in published.spec.devices:
            uuid = str(attributes.summary(device.attributes).get("uuid", device.name))
            by_uuid.setdefault((published.spec.node_name, uuid), []).append((published, device))
    return sorted(
        (_gpu(node, uuid, found, holders) for (node, uuid), found in by_uuid.items()),
        key=lambda gpu: (gpu.node, len(gpu.name), gpu.name),
    )


def _gpu(
    node: str,
    uuid: str,
    found: list[tuple[resource_v1.ResourceSlice, resource_v1.Device]],
    holders: dict[tuple[str, str], list[str]],
) -> ListedGpu:
    views = {str(attributes.summary(device.attributes).get("type", "?")): device for _, device in found}
    whole = views.get(_WHOLE, found[0][1])
    facts = attributes.summary(whole.attributes)
    memory = whole.capacity.get("memory")
    return ListedGpu(
        node=node,
        name=whole.name,
        product=str(facts.get("productName", "-")),
        memory=memory.value if memory else "-",
        uuid=uuid,
        views={view: device.name for view, device in sorted(views.items())},
        taints=tuple(sorted({taint.key for _, device in found for taint in device.taints})),
        holders=tuple(
            sorted(holder for item, device in found for holder in holders.get((item.spec.pool.name, device.name), ()))
        ),
    )


def as_json(gpus: list[ListedGpu]) -> str:
    """Return the GPUs for machines."""
    return msgspec.json.format(msgspec.json.encode({"gpus": gpus}), indent=2).decode()


def as_table(gpus: list[ListedGpu]) -> str:
    """Return the GPUs for people."""
    if not gpus:
        return f"No GPU is published by {DRIVER}: is the driver installed, and is a node plugin running?"
    rows = [
        [
            gpu.node,
            gpu.name,
            gpu.product,
            gpu.memory,
            ", ".join(gpu.views),
            "\n".join(gpu.holders) or "-",
            ", ".join(gpu.taints) or "-",
            gpu.uuid,
        ]
        for gpu in gpus
    ]
    return table(["NODE", "GPU", "PRODUCT", "MEMORY", "VIEWS", "HELD BY", "TAINTS", "UUID"], rows)
