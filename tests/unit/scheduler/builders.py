"""A node's pool in as few words as a test needs."""

import itertools

import msgspec

from dra_gpu.api.resource_claim_v1 import DeviceClass, ResourceClaim
from dra_gpu.api.resource_v1 import Device, ResourceSlice
from dra_gpu.scheduler import allocator
from dra_gpu.scheduler.held import Held
from dra_gpu.scheduler.model import Candidate, DeviceId, Node

DRIVER, NODE = "gpu.nvidia.com", "node-0"


def decode(value, kind):
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)


def device_class(name, view):
    expression = f'device.attributes["{DRIVER}"].type == "{view}"'
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


CLASSES = [
    device_class("gpu", "gpu"),
    device_class("shared", "shared"),
    device_class("monitor", "monitor"),
]


def shareable(memory="80Gi"):
    """The capacities of the `shared` view."""
    return {
        "computePercent": {
            "value": "100",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
        },
        "memory": {"value": memory, "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}}},
    }


def device(name, view="gpu", **more):
    return {"name": name, "attributes": {"type": {"string": view}} | more.pop("attributes", {}), **more}


def gpu(index, memory="80Gi"):
    """One GPU in three views that exclude each other as the real ones do."""
    takes = [{"counterSet": f"gpu-{index}", "counters": {"memory": {"value": memory}}}]
    return [
        device(f"gpu-{index}", consumesCounters=takes),
        device(
            f"gpu-{index}-shared",
            "shared",
            consumesCounters=takes,
            allowMultipleAllocations=True,
            capacity=shareable(memory),
        ),
        device(f"gpu-{index}-monitor", "monitor", allowMultipleAllocations=True),
    ]


def published(*devices, name="slice-1", counters=(), generation=1, count=1, **spec):
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": count}
    spec = {"nodeName": NODE} | spec
    return {
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "pool": pool, "devices": list(devices), "sharedCounters": list(counters), **spec},
    }


def node_with_gpus(count, memory="80Gi"):
    sets = [{"name": f"gpu-{index}", "counters": {"memory": {"value": memory}}} for index in range(count)]
    devices = itertools.chain.from_iterable(gpu(index, memory) for index in range(count))
    return [published(name="slice-0", counters=sets, count=2), published(*devices, count=2)]


def request(class_name="gpu", name="r", **more):
    return {"name": name, "exactly": {"deviceClassName": class_name, **more}}


def share(**amounts):
    return request("shared", capacity={"requests": amounts})


def claim(*requests, name="job", constraints=()):
    devices = {"requests": list(requests) or [request()], "constraints": list(constraints)}
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": {"devices": devices}}


class Cluster:
    """Decides about claims one after the other and remembers what they hold."""

    def __init__(self, slices, classes=CLASSES):
        self.slices, self.classes, self.claims = slices, classes, []

    def decide(self, *claims, **options):
        return allocator.allocate(
            decode(claims, list[ResourceClaim]),
            classes=decode(self.classes, list[DeviceClass]),
            slices=decode(self.slices, list[ResourceSlice]),
            held=Held.of(decode(self.claims, list[ResourceClaim])),
            node=Node(NODE, {"zone": "a"}),
            **options,
        )

    def devices(self, *claims, **options):
        """Allocate claims of one pod, and return the names of their devices."""
        decided = self.decide(*claims, **options)
        assert isinstance(decided, allocator.Allocated), decided
        for asked, allocation in zip(claims, decided.allocations, strict=True):
            self.claims.append(asked | {"status": {"allocation": msgspec.to_builtins(allocation)}})
        return [result.device for allocation in decided.allocations for result in allocation.devices.results]

    def refused(self, *claims, **options):
        decided = self.decide(*claims, **options)
        assert isinstance(decided, allocator.NotAllocated), decided
        return decided

    def reason(self, device_name, *claims):
        """Why a device was refused to the last request that was tried."""
        report = self.refused(*claims).requests[-1]
        return report.devices[DeviceId(DRIVER, NODE, device_name)]

    def release(self, name):
        self.claims = [entry for entry in self.claims if entry["metadata"]["name"] != name]


def candidate(entry, driver=DRIVER):
    made = decode(entry, Device)
    return Candidate(DeviceId(driver, NODE, made.name), made, decode(published(entry), ResourceSlice))
