"""The GPUs of a cluster as its API server knows them: ResourceSlices say what there is, ResourceClaims who holds it.

What enforces a share's limits is what the driver on the node wrote into the claim's status; nothing is guessed here.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import msgspec

from dra_gpu.api import claim_status_v1, cordon, quantity, resource_v1
from dra_gpu.api.claim_resize import GROWTH_LABEL
from dra_gpu.api.claim_resize import KIND as RESIZE_KIND
from dra_gpu.api.device_taint_rule_v1 import DeviceTaintRule, DeviceTaintRuleSpec
from dra_gpu.apiserver.client import HttpKubernetesApi
from dra_gpu.apiserver.connection import from_kubeconfig
from dra_gpu.apiserver.errors import ForbiddenError, NotFoundError
from dra_gpu.apiserver.kubernetes_api import Selection
from dra_gpu.apiserver.resources import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_gpu.inventory import amounts, attributes, capacities
from dra_gpu.inventory.amounts import Amounts
from dra_gpu.inventory.model import View

DRIVER = "gpu.nvidia.com"
_PARENT, _PROFILE = "parentUUID", "profile"
_WHOLE = 100  # percent of a GPU's SMs


class Holder(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A claim that has a device of a GPU.

    Attributes:
        claim: `namespace/name`.
        device: name of the device.
        view: how it uses the GPU.
        admin: it watches and counts for nothing.
        share: id of its share.
        capacities: what it has of each capacity, as quantities.
        mechanisms: what enforces each, as the node says; empty until the node has said it.
        effective: what is in force of each, as the node says; other than what it has where capacity was moved.
        profile: of the partition that the device is, such as `3g.40gb`; empty for the GPU itself.
        growth_of: the claim that has grown by this one, `namespace/name`; empty for a claim of a pod.
    """

    claim: str
    device: str
    view: str
    admin: bool = False
    share: str = ""
    capacities: dict[str, str] = {}
    mechanisms: dict[str, str] = {}
    effective: dict[str, str] = {}
    profile: str = ""
    growth_of: str = ""


class ListedGpu(msgspec.Struct, rename="camel", frozen=True):
    """One GPU.

    Attributes:
        node: the node it is in.
        name: name of its whole-GPU device.
        product: what the vendor calls it.
        memory: a quantity.
        uuid: the vendor's identity of it.
        pci: its PCI address.
        isolation: what would limit a share of it at least, `-` where it is not shared.
        views: device names by view; partitions, of which there are many, are not among them.
        health: `ok`, or what keeps claims off any of its devices: `cordoned`, `drained`, and the keys of other taints.
        holders: who has something of it.
        free_partitions: names of the partitions that still fit beside what is held, by profile, the largest first.
        nvlink_group: equal on GPUs of a node that reach each other over NVLink; empty where it is not told.
        pcie_root: its root complex, which a network card beside it has, too.
        numa_node: the NUMA nodes next to it, `-` where there are none.
        given_back: what is offered beyond the hardware, because claims gave up what they were allocated.
    """

    node: str
    name: str
    product: str
    memory: str
    uuid: str
    pci: str
    isolation: str
    views: dict[str, str]
    health: str = "ok"
    holders: tuple[Holder, ...] = ()
    free_partitions: dict[str, tuple[str, ...]] = {}
    nvlink_group: str = ""
    pcie_root: str = "-"
    numa_node: str = "-"
    given_back: dict[str, str] = {}


class _Status(resource_v1.ResourceClaimStatus, frozen=True):
    devices: tuple[claim_status_v1.AllocatedDeviceStatus, ...] = ()


class Claim(resource_v1.ResourceClaim, frozen=True):
    """A claim with what drivers say about its devices."""

    status: _Status = _Status()


class _Capacity(msgspec.Struct):
    mechanism: str = ""
    effective: str = ""


class _Data(msgspec.Struct):
    capacities: dict[str, _Capacity] = {}


class Found(NamedTuple):
    """The GPUs of a cluster, and what stands there that could not be read: it may hold something of a GPU."""

    gpus: list[ListedGpu]
    unreadable: tuple[str, ...] = ()


async def read(kubeconfig: Path, context: str | None, node: str) -> Found:
    """Read the GPUs of a cluster.

    Raises:
        ConnectionConfigError: the kubeconfig cannot be used.
        ApiError: the API server refuses or does not answer.
    """
    kind = RESOURCE_CLAIMS
    claims_of = Resource(kind.group, kind.version, kind.plural, kind.kind, namespaced=kind.namespaced, type=Claim)
    api = HttpKubernetesApi(from_kubeconfig(kubeconfig, context))
    try:
        chosen = f"spec.driver={DRIVER}" + (f",spec.nodeName={node}" if node else "")
        slices = await api.list(RESOURCE_SLICES, Selection(field_selector=chosen))
        claims = await api.list(claims_of)
        rules = await _rules(api)
    finally:
        api.close()
    unreadable = [f"ResourceSlice {problem}" for problem in slices.undecodable]
    unreadable += [f"ResourceClaim {problem}" for problem in claims.undecodable]
    return Found(combine(slices.items, claims.items, rules), tuple(unreadable))


async def _rules(api: HttpKubernetesApi) -> tuple[DeviceTaintRule, ...]:
    """Return the taints that people have put on devices; none where the cluster has no such rules, or keeps them."""
    try:
        return (await api.list(DEVICE_TAINT_RULES)).items
    except (NotFoundError, ForbiddenError):
        return ()


def combine(
    slices: Iterable[resource_v1.ResourceSlice], claims: Iterable[Claim], rules: Iterable[DeviceTaintRule] = ()
) -> list[ListedGpu]:
    """Return the GPUs in the order of nodes and names, with who holds them."""
    holders = _holders(claims)
    tainting = [rule.spec for rule in rules]
    by_uuid: dict[tuple[str, str], list[tuple[str, resource_v1.Device]]] = {}
    counters: dict[str, dict[str, resource_v1.CounterSet]] = {}
    for published in slices:
        pool = published.spec.pool.name
        counters.setdefault(pool, {}).update({one.name: one for one in published.spec.shared_counters})
        for device in published.spec.devices:
            facts = attributes.summary(device.attributes)
            uuid = str(facts.get(_PARENT, facts.get("uuid", device.name)))  # a partition belongs to its GPU's row
            by_uuid.setdefault((published.spec.node_name, uuid), []).append((pool, device))
    gpus = [_gpu(node, uuid, found, holders, counters, tainting) for (node, uuid), found in by_uuid.items()]
    return sorted(gpus, key=lambda gpu: (gpu.node, len(gpu.name), gpu.name))


def _holders(claims: Iterable[Claim]) -> dict[tuple[str, str], list[Holder]]:
    """Return who holds each (pool, device); the view is filled in where the device is known."""
    holders: dict[tuple[str, str], list[Holder]] = {}
    for claim in claims:
        allocation = claim.status.allocation
        said = {(one.pool, one.device, one.share_id): one for one in claim.status.devices if one.driver == DRIVER}
        for result in allocation.devices.results if allocation else ():
            if result.driver != DRIVER:
                continue
            capacity = _capacities(said.get((result.pool, result.device, result.share_id)))
            holder = Holder(
                claim=f"{claim.metadata.namespace}/{claim.metadata.name}",
                device=result.device,
                view="",
                admin=bool(result.admin_access),
                share=result.share_id or "",
                capacities=dict(result.consumed_capacity),
                mechanisms={name: one.mechanism for name, one in capacity.items() if one.mechanism},
                effective={name: one.effective for name, one in capacity.items() if one.effective},
                growth_of=_growth_of(claim),
            )
            holders.setdefault((result.pool, result.device), []).append(holder)
    return holders


def _capacities(status: claim_status_v1.AllocatedDeviceStatus | None) -> Mapping[str, _Capacity]:
    if status is None or status.data is msgspec.UNSET:
        return {}
    try:
        return msgspec.json.decode(status.data, type=_Data).capacities
    except msgspec.DecodeError:
        return {}  # another driver of the same name wrote it; what it means is not ours to say


def _growth_of(claim: Claim) -> str:
    """Return the claim that a claim stands in for; it has the name of its ClaimResize."""
    if GROWTH_LABEL not in claim.metadata.labels:
        return ""
    owner = next((one.name for one in claim.metadata.owner_references if one.kind == RESIZE_KIND), "?")
    return f"{claim.metadata.namespace}/{owner}"


def _gpu(
    node: str,
    uuid: str,
    found: list[tuple[str, resource_v1.Device]],
    holders: Mapping[tuple[str, str], list[Holder]],
    counters: Mapping[str, Mapping[str, resource_v1.CounterSet]],
    rules: Iterable[DeviceTaintRuleSpec],
) -> ListedGpu:
    facts_of = {device.name: attributes.summary(device.attributes) for _, device in found}
    views = {str(facts_of[device.name].get("type", "?")): device for _, device in found if not _is_partition(device)}
    shared = views.get(View.SHARED.value)
    whole = views.get(View.GPU.value) or shared or next(iter(views.values()), found[0][1])
    facts = facts_of[whole.name]
    memory = whole.capacity.get(capacities.MEMORY)  # that of shares moves with what claims give back
    taints = sorted(
        {taint.key for _, device in found for taint in device.taints}
        | {_word(rule.taint) for rule in rules for pool, device in found if rule.taint and _matches(rule, pool, device)}
    )
    held = [
        msgspec.structs.replace(
            holder,
            view=str(facts_of[device.name].get("type", "?")),
            profile=str(facts_of[device.name].get(_PROFILE, "")),
        )
        for pool, device in found
        for holder in holders.get((pool, device.name), ())
    ]
    return ListedGpu(
        node=node,
        name=whole.name,
        product=str(facts.get("productName", "-")),
        memory=memory.value if memory else "-",
        uuid=uuid,
        pci=str(facts.get(attributes.PCI_BUS_ID, "-")),
        isolation=str(facts_of[shared.name].get("isolation", "-")) if shared is not None else "-",
        views={view: device.name for view, device in sorted(views.items())},
        health=", ".join(taints) or "ok",
        holders=tuple(sorted(held, key=lambda holder: (holder.admin, holder.claim))),
        free_partitions=_free_partitions(found, {holder.device for holder in held if not holder.admin}, counters),
        nvlink_group=str(facts.get("nvlinkGroup", "")),
        pcie_root=str(facts.get(attributes.PCIE_ROOT, "-")),
        numa_node=str(facts.get(attributes.NUMA_NODE, "-")),
        given_back=_given_back(shared, whole) if shared is not None else {},
    )


def _given_back(shared: resource_v1.Device, whole: resource_v1.Device) -> dict[str, str]:
    """Return what a shared device has beyond its GPU."""
    published = amounts.parse({name: one.value for name, one in shared.capacity.items()})
    of_gpu = whole.capacity.get(capacities.MEMORY)
    memory = quantity.parse_int(of_gpu.value) if of_gpu is not None else published.memory
    more = Amounts(published.compute_percent - _WHOLE, published.memory - memory)
    return more.at_least(Amounts()).wire()


def _matches(rule: DeviceTaintRuleSpec, pool: str, device: resource_v1.Device) -> bool:
    """Tell whether a rule is about a device; one without a selector is about none (K8s v1.37 resource/v1 types.go)."""
    selector = rule.device_selector
    return selector is not None and all(
        wanted in ("", there)
        for wanted, there in ((selector.driver, DRIVER), (selector.pool, pool), (selector.device, device.name))
    )


def _word(taint: resource_v1.DeviceTaint) -> str:
    if taint.key != cordon.TAINT_KEY:
        return taint.key
    return "drained" if taint.effect == "NoExecute" else "cordoned"


def _is_partition(device: resource_v1.Device) -> bool:
    return _PARENT in attributes.summary(device.attributes)


def _free_partitions(
    found: list[tuple[str, resource_v1.Device]],
    held: AbstractSet[str],
    counters: Mapping[str, Mapping[str, resource_v1.CounterSet]],
) -> dict[str, tuple[str, ...]]:
    """Return the partitions that the scheduler could still give: those whose counters nobody has used up."""
    left = {
        (pool, name, counter): quantity.parse(one.value)
        for pool, sets in counters.items()
        for name, counter_set in sets.items()
        for counter, one in counter_set.counters.items()
    }
    for pool, device in found:
        if device.name in held:
            for key, wanted in _takes(pool, device):
                left[key] = left.get(key, Fraction()) - wanted
    fitting = [
        device
        for pool, device in found
        if attributes.summary(device.attributes).get("type") == View.MIG.value
        and all(left.get(key, Fraction()) >= wanted for key, wanted in _takes(pool, device))
    ]
    by_profile: dict[str, list[str]] = {}
    for device in sorted(fitting, key=_by_size):
        by_profile.setdefault(str(attributes.summary(device.attributes).get(_PROFILE, "?")), []).append(device.name)
    return {profile: tuple(names) for profile, names in by_profile.items()}


def _takes(pool: str, device: resource_v1.Device) -> Iterator[tuple[tuple[str, str, str], Fraction]]:
    for taken in device.consumes_counters:
        for counter, one in taken.counters.items():
            yield (pool, taken.counter_set, counter), quantity.parse(one.value)


def _by_size(device: resource_v1.Device) -> tuple[Fraction, str]:
    memory = device.capacity.get(capacities.MEMORY)
    return -quantity.parse(memory.value) if memory else Fraction(), device.name


def free(gpu: ListedGpu) -> tuple[int, int | None]:
    """Return what shares can still be given of a GPU: percent of its SMs, and bytes of its memory (None: unknown).

    Nothing while somebody has all of it, alone or with others, or a partition.
    """
    counted = [holder for holder in gpu.holders if not holder.admin]
    total = None if gpu.memory == "-" else quantity.parse_int(gpu.memory)
    if any(not holder.share or holder.profile or holder.view == View.GPU.value for holder in counted):
        return 0, 0
    held = sum((amounts.parse(holder.capacities) for holder in counted), Amounts())
    offered = amounts.parse(gpu.given_back) + Amounts(_WHOLE, total or 0)
    left = (offered - held).at_least(Amounts())
    return left.compute_percent, None if total is None else left.memory
