"""A node on which manifests run as they are: what a cluster does with a file, down to the programs in its containers.

The API server's part (versions, templates), the controllers' (Deployments, Jobs, claims from templates, claims for
extended resources) and the kubelet's (which container gets which device) are short stand-ins; allocator, node plugin,
MPS service and GPUs are those of the local mode.
"""

import asyncio
import copy
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dra_gpu.validation import manifest
from dra_gpu.validation.problem import Severity
from dra_gpu_sim.client import CudaClient
from dra_gpu_sim.local import allocator, containers
from dra_gpu_sim.local.cluster import DRIVER, LocalCluster
from dra_gpu_sim.local.kubelet import Claim, Device, Kubelet
from dra_gpu_sim.local.pods import LocalPod

MANIFESTS = Path(__file__).parent / "manifests"
#: A reader of a shared, busy machine has patience; only a test that hangs waits so long.
PATIENCE = 120.0
_IN_THE_REQUEST = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
_REPLICAS = {"Deployment": "replicas", "Job": "parallelism"}

Json = dict[str, Any]


@dataclass
class Pod:
    """A pod of a manifest, and what became of it.

    Attributes:
        name: its name.
        containers: those that run, by name; empty while it does not.
        pending: why it is not scheduled; empty when it is.
        refused: what the node plugin says; empty when it prepares all claims.
        claims: the claims that it uses, by their names in the pod.
    """

    name: str
    containers: dict[str, LocalPod] = field(default_factory=dict)
    pending: str = ""
    refused: str = ""
    claims: dict[str, Claim] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether its containers have started."""
        return not self.pending and not self.refused


@dataclass
class Node:
    """A node with the driver, and short words for what tests do there."""

    cluster: LocalCluster
    kubelet: Kubelet
    programs: ExitStack = field(default_factory=ExitStack)
    _namespaces: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _claims: dict[str, Claim] = field(default_factory=dict)
    _classes: list[str] = field(default_factory=list)

    def document(self, name: str, **values: str) -> list[Json]:
        """Return the objects of a manifest; `validate` has nothing against them.

        Args:
            name: of the file.
            values: what to put in the place of a word of the file, such as a UUID that only the node tells.
        """
        text = (MANIFESTS / name).read_text()
        for word, value in values.items():
            assert word in text
            text = text.replace(word, value)
        documents = [document for document in yaml.safe_load_all(text) if document]
        errors = [
            f"{report.kind} {report.name}: {problem}"
            for report in map(manifest.check, documents)
            if report is not None
            for problem in report.problems
            if problem.severity is Severity.ERROR
        ]
        assert not errors, errors
        return documents

    async def apply(self, name: str, **values: str) -> dict[str, Pod]:
        """Apply a manifest whose pods must all run, and return them by name."""
        pods = await self.run(self.document(name, **values))
        left = {pod.name: pod.pending or pod.refused for pod in pods.values() if not pod.runs}
        assert not left, left
        return pods

    async def run(self, documents: Iterable[Json]) -> dict[str, Pod]:
        """Create objects, and start every pod that can be started, in the order of the file."""
        namespace = f"ns-{next(self._namespaces)}"
        objects = [as_v1(document) for document in documents]
        templates = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "ResourceClaimTemplate"}
        named = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ResourceClaim"}
        for device_class in objects:
            if device_class["kind"] == "DeviceClass":
                self.cluster.api.put("deviceclasses", device_class)
                self._classes.append(device_class["metadata"]["name"])
        allocated: dict[str, Claim] = {}
        pods = {}
        for name, spec in (one for document in objects for one in _pods(document)):
            pod = pods[name] = Pod(name)
            uid = str(uuid.uuid4())
            try:
                for wanted in _claims(spec, self._extended_resources(), templates, named):
                    key = wanted.claim or f"{name}-{wanted.name}"
                    if key not in allocated:
                        allocated[key] = self._allocate(key, wanted.spec, namespace, uid)
                    pod.claims[wanted.name] = allocated[key]
            except (allocator.UnschedulableError, _InsufficientError) as error:
                pod.pending = str(error)
                continue
            await self._start(pod, spec, uid)
        return pods

    async def end(self, pods: Mapping[str, Pod]) -> None:
        """Delete pods whose programs have ended: their claims are given back and deleted."""
        await self._delete({claim.uid: claim for pod in pods.values() for claim in pod.claims.values()})

    async def clean(self) -> None:
        """End all programs, and delete all pods and classes of manifests."""
        self.programs.close()
        await self._delete(self._claims)
        for name in self._classes:
            self.cluster.api.remove("deviceclasses", name)
        self._classes.clear()

    async def _delete(self, claims: Mapping[str, Claim]) -> None:
        errors = await self.kubelet.unprepare(*claims.values(), driver=DRIVER, within=PATIENCE)
        assert not any(errors.values()), errors
        for claim in claims.values():
            self.cluster.remove_claim(claim)
        self._claims = {uid: claim for uid, claim in self._claims.items() if uid not in claims}

    def program(self, container: LocalPod) -> CudaClient:
        """Start a program in a container; it must get its GPU."""
        client = self.programs.enter_context(container.client())
        assert client.attached.startswith("attached"), client.attached
        return client

    def truth(self, client: CudaClient) -> Any:
        """What the hardware lets a program do."""
        return next(one for one in self.cluster.node.clients() if one.pid == client.pid)

    def results(self, claim: Claim) -> list[Json]:
        """The devices that the scheduler has given to a claim."""
        allocation: Json = self._object(claim)["status"]["allocation"]["devices"]
        found: list[Json] = allocation["results"]
        return found

    def devices(self, claim: Claim) -> list[str]:
        """Their names."""
        return [result["device"] for result in self.results(claim)]

    async def status(self, claim: Claim) -> list[Json]:
        """What the node plugin writes into a claim's status."""

        def told() -> list[Json]:
            found: list[Json] = self._object(claim)["status"].get("devices", [])
            return found

        await self.cluster.api.log.wait_for(lambda _: told(), PATIENCE)
        return told()

    async def wait_published(self, *devices: str) -> None:
        """Wait until the pool is complete, and these devices are in it."""
        await self.cluster.api.log.wait_for(
            lambda _: self._complete() and self.published().keys() >= set(devices), PATIENCE
        )

    def _complete(self) -> bool:
        own = [one["spec"] for one in self.cluster.slices() if one["spec"]["nodeName"] == self.cluster.node_name]
        newest = max((spec["pool"]["generation"] for spec in own), default=0)
        current = [spec for spec in own if spec["pool"]["generation"] == newest]
        return bool(own) and len(own) == len(current) == current[0]["pool"]["resourceSliceCount"]

    def published(self) -> dict[str, Json]:
        """Every published device by name."""
        return {device["name"]: device for item in self.cluster.slices() for device in item["spec"].get("devices", ())}

    def _extended_resources(self) -> dict[str, str]:
        classes = self.cluster.api.objects("deviceclasses")
        return {
            one["spec"]["extendedResourceName"]: one["metadata"]["name"]
            for one in classes
            if one["spec"].get("extendedResourceName")
        }

    def _object(self, claim: Claim) -> Json:
        found = self.cluster.api.objects("resourceclaims", claim.namespace)
        return next(one for one in found if one["metadata"]["name"] == claim.name)

    def _allocate(self, name: str, spec: Json, namespace: str, pod_uid: str) -> Claim:
        claim = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
        api = self.cluster.api
        allocation = allocator.allocate(
            claim,
            classes=api.objects("deviceclasses"),
            slices=api.objects("resourceslices"),
            claims=api.objects("resourceclaims"),
            node=api.objects("nodes")[0],
        )
        reserved = [{"resource": "pods", "name": name, "uid": pod_uid}]
        status = {"allocation": allocation, "reservedFor": reserved}
        made = api.put("resourceclaims", {**claim, "status": status}, namespace)
        allocated = Claim(namespace, name, made["metadata"]["uid"])
        self._claims[allocated.uid] = allocated
        return allocated

    async def _start(self, pod: Pod, spec: Json, uid: str) -> None:
        cgroup = self.cluster.paths.make_pod_cgroup(uid)
        answers = await self.kubelet.prepare(*pod.claims.values(), driver=DRIVER, within=PATIENCE)
        pod.refused = "; ".join(answer.error for answer in answers.values() if answer.error)
        if pod.refused:
            return
        devices = {name: answers[claim.uid].devices for name, claim in pod.claims.items()}
        for index, container in enumerate(spec["containers"]):
            given = _given(container, index, devices)
            ids = [one for device in given for one in device.cdi_ids]
            made = containers.with_devices(self.cluster.paths.cdi, ids)
            of_image = {one["name"]: one["value"] for one in container.get("env", ())}
            made.env = {**of_image, **made.env}  # a runtime puts the edits over what image and pod say
            name = f"{cgroup.rpartition('/')[2]}-{container['name']}"
            claim = next(iter(pod.claims.values()))
            pod.containers[container["name"]] = LocalPod(self.cluster, name, claim, given, made, cgroup)


async def start_node(cluster: LocalCluster, *flags: str) -> Node:
    """Start the MPS service and the node plugin on a node, and wait until it has published its GPUs."""
    with cluster.node.state() as state:
        state.mps_start_ms = 0  # what a daemon takes to start is not what is tested
    await cluster.start_mps()
    node = Node(cluster, cluster.new_kubelet())
    plugin = await cluster.start_plugin(*flags)
    assert plugin.process is not None
    serving = asyncio.ensure_future(_serving(node))
    ending = asyncio.ensure_future(plugin.process.wait())
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
    ending.cancel()
    if not serving.done():
        serving.cancel()
        raise AssertionError(f"nothing was published:\n{plugin.read_log()[-4000:]}")
    await serving
    return node


async def _serving(node: Node) -> None:
    await node.kubelet.wait_registered(DRIVER, within=PATIENCE)
    await node.wait_published()


async def listed(container: LocalPod) -> list[str]:
    """Return the GPUs and partitions that `nvidia-smi -L` lists in a container."""
    return re.findall(r"UUID: ((?:GPU|MIG)-[^)]+)\)", await container.nvidia_smi())


async def smi(cluster: LocalCluster, *arguments: str) -> None:
    """Do what an administrator does with NVIDIA's own tool."""
    process = await asyncio.create_subprocess_exec(
        cluster.node.nvidia_smi,
        *arguments,
        env=cluster.node.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output


class _InsufficientError(Exception):
    """A pod asks for a resource that neither a class nor the node has."""


@dataclass(frozen=True)
class _Wanted:
    """A claim that a pod uses: by which name, which claim (empty for one of its own), and what it asks for."""

    name: str
    claim: str
    spec: Json


def as_v1(document: Json) -> Json:
    """Return an object as the API server has it for those who read v1."""
    group, _, version = document["apiVersion"].rpartition("/")
    if group != "resource.k8s.io":
        return document
    converted = copy.deepcopy(document)
    converted["apiVersion"] = f"{group}/v1"
    spec = converted["spec"].get("spec", converted["spec"])
    if version == "v1beta1" and "devices" in spec:
        spec["devices"]["requests"] = [_request(request) for request in spec["devices"]["requests"]]
    return converted


def _request(flat: Json) -> Json:
    if "firstAvailable" in flat:
        return flat
    return {"name": flat["name"], "exactly": {key: flat[key] for key in _IN_THE_REQUEST if key in flat}}


def _pods(document: Json) -> Iterator[tuple[str, Json]]:
    kind, name = document["kind"], document["metadata"]["name"]
    if kind == "Pod":
        yield name, document["spec"]
    elif kind in _REPLICAS:
        for number in range(document["spec"].get(_REPLICAS[kind], 1)):
            yield f"{name}-{number}", document["spec"]["template"]["spec"]


def _claims(
    spec: Json, resources: dict[str, str], templates: dict[str, Json], named: dict[str, Json]
) -> Iterator[_Wanted]:
    for entry in spec.get("resourceClaims", ()):
        template = entry.get("resourceClaimTemplateName")
        if template is not None:
            yield _Wanted(entry["name"], "", templates[template]["spec"])
        else:
            claim = entry["resourceClaimName"]
            yield _Wanted(entry["name"], claim, named[claim]["spec"])
    asked = []
    for index, container in enumerate(spec["containers"]):
        for number, (name, amount) in enumerate(_limits(container)):
            if name in resources:
                exactly = {"deviceClassName": resources[name], "count": int(amount)}
                asked.append({"name": _extended(index, number), "exactly": exactly})
            elif "/" in name:
                raise _InsufficientError(f"Insufficient {name}")
    if asked:
        yield _Wanted(_EXTENDED, "", {"devices": {"requests": asked}})


def _given(container: Json, index: int, devices: dict[str, tuple[Device, ...]]) -> tuple[Device, ...]:
    given: list[Device] = []
    for entry in container.get("resources", {}).get("claims", ()):
        wanted = entry.get("request")
        given += [one for one in devices[entry["name"]] if wanted is None or wanted in one.request_names]
    own = {_extended(index, number) for number, _ in enumerate(_limits(container))}
    given += [one for one in devices.get(_EXTENDED, ()) if own & set(one.request_names)]
    return tuple(given)


def _limits(container: Json) -> list[tuple[str, str]]:
    found = container.get("resources", {}).get("limits", {})
    return sorted((name, str(amount)) for name, amount in found.items())


def _extended(index: int, number: int) -> str:
    """Name a request as kube-scheduler does in the claim that it makes for extended resources."""
    return f"container-{index}-request-{number}"


_EXTENDED = "<extended-resources>"
