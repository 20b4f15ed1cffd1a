"""Random pools, classes and claims, as plain wire objects: the same dictionaries go to both allocators."""

import copy
import random
from typing import Any

GPU, NIC = "gpu.nvidia.com", "nic.example.com"
TAINTS = [
    {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"},
    {"key": "gpu.nvidia.com/xid", "value": "13", "effect": "NoSchedule"},
    {"key": "example.com/notice", "effect": "None"},
]
SELECTORS = [
    'device.attributes["gpu.nvidia.com"].index < 2',
    'device.attributes["gpu.nvidia.com"].productName.startsWith("NVIDIA H")',
    'device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("580.0.0"))',
    'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("60Gi")) >= 0',
    'device.attributes["gpu.nvidia.com"].?missing.orValue(true)',
    'device.attributes["other.example.com"].missing == 1',
    '!("other.example.com" in device.attributes)',
    'cel.bind(gpu, device.attributes["gpu.nvidia.com"], gpu.index != 1 && gpu.healthy)',
    "device.allowMultipleAllocations",
    'device.attributes["gpu.nvidia.com"].uuid',
    "device.nonsense(",
    'has(device.attributes["gpu.nvidia.com"].nvlinkGroup) && device.attributes["gpu.nvidia.com"].nvlinkGroup == "g0"',
]


def _class(name: str, expression: str, *, config: str | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if config:
        spec["config"] = [{"opaque": {"driver": GPU, "parameters": {"kind": config}}}]
    return {"metadata": {"name": name}, "spec": spec}


def _view(view: str) -> str:
    return f'device.driver == "{GPU}" && device.attributes["{GPU}"].type == "{view}"'


CLASSES = [
    _class("gpu.nvidia.com", _view("gpu"), config="GpuConfig"),
    _class("shared.gpu.nvidia.com", _view("shared"), config="SharedGpuConfig"),
    _class("mig.nvidia.com", _view("mig")),
    _class("monitor.nvidia.com", _view("monitor")),
    _class("nic.example.com", f'device.driver == "{NIC}"'),
    _class("anything", "true"),
]


class World:
    """One cluster seen from one node, with what has been allocated in it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.node = {"metadata": {"name": "node-0", "labels": {"zone": self._random.choice("ab")}}}
        self.slices: list[dict[str, Any]] = []
        self.allocated: list[dict[str, Any]] = []
        self._gpus(self._random.randint(1, 4), mig=self._random.random() < 0.3)
        if self._random.random() < 0.5:
            self._nics()
        if self._random.random() < 0.15:
            self._spoil()
        self._random.shuffle(self.slices)

    def change(self) -> None:
        """Do to published slices what a driver does: taint a GPU, move capacity, write a new generation."""
        devices = [device for published in self.slices for device in published["spec"].get("devices", ())]
        if devices and self._random.random() < 0.3:
            self._random.choice(devices)["taints"] = [self._random.choice(TAINTS)]
        shared = [device for device in devices if device.get("allowMultipleAllocations") and device.get("capacity")]
        if shared and self._random.random() < 0.3:
            self._random.choice(shared)["capacity"]["memory"]["value"] = self._random.choice(["20Gi", "60Gi", "160Gi"])
        counters = [published for published in self.slices if published["spec"].get("sharedCounters")]
        if counters and self._random.random() < 0.1:
            counter_set = self._random.choice(self._random.choice(counters)["spec"]["sharedCounters"])
            counter_set["counters"]["memory"]["value"] = "30Gi"

    def pod(self, number: int) -> list[dict[str, Any]]:
        """Return the claims of a pod."""
        return [self._claim(f"pod-{number}-{index}") for index in range(self._random.choice([1, 1, 1, 2]))]

    def hold(self, claims: list[dict[str, Any]], allocations: list[dict[str, Any]]) -> None:
        """Let claims keep what they got."""
        for claim, allocation in zip(claims, allocations, strict=True):
            self.allocated.append(copy.deepcopy(claim) | {"status": {"allocation": allocation}})

    def release(self) -> None:
        """Let a claim go, now and then."""
        if self.allocated and self._random.random() < 0.3:
            self.allocated.pop(self._random.randrange(len(self.allocated)))

    def _slice(self, driver: str, pool: str, name: str, **spec: Any) -> dict[str, Any]:
        placed = {} if {"allNodes", "nodeSelector", "perDeviceNodeSelection"} & spec.keys() else {"nodeName": "node-0"}
        return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": {"name": pool}, **placed, **spec}}

    def _finish(self, slices: list[dict[str, Any]], generation: int) -> None:
        for published in slices:
            published["spec"]["pool"] |= {"generation": generation, "resourceSliceCount": len(slices)}
        self.slices += slices

    def _gpus(self, count: int, *, mig: bool) -> None:
        boards = [self._board(index, mig=mig) for index in range(count)]
        sets = [
            {"name": f"gpu-{index}", "counters": {"memory": {"value": "80Gi"}, "slices": {"value": "7"}}}
            for index in range(count)
        ]
        first = [board["gpu"] for board in reversed(boards)] + [board["shared"] for board in boards]
        first += [board["monitor"] for board in boards]
        slices = [
            self._slice(GPU, "node-0", "node-0-0", sharedCounters=sets),
            self._slice(GPU, "node-0", "node-0-1", devices=first),
        ]
        if mig:
            parts = [device for board in boards for device in board["mig"]]
            slices.append(self._slice(GPU, "node-0", "node-0-2", devices=parts))
        self._finish(slices, generation=self._random.randint(0, 2))
        if self._random.random() < 0.3:
            stale = copy.deepcopy(slices[1])
            stale["metadata"]["name"] = "node-0-stale"
            stale["spec"]["pool"]["generation"] -= 1
            self.slices.append(stale)

    def _board(self, index: int, *, mig: bool) -> dict[str, Any]:
        attributes = {
            "index": {"int": index},
            "uuid": {"string": f"GPU-{index}"},
            "productName": {"string": self._random.choice(["NVIDIA H100", "NVIDIA A100"])},
            "driverVersion": {"version": self._random.choice(["570.1.2", "615.71.2"])},
            "healthy": {"bool": self._random.random() < 0.8},
            "nvlinkGroup": {"string": f"g{index // 2}"},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci{index % 2}"},
        }

        def device(view: str, name: str, memory: str, slices: str) -> dict[str, Any]:
            wanted = {"memory": {"value": memory}, "slices": {"value": slices}}
            made: dict[str, Any] = {
                "name": name,
                "attributes": {"type": {"string": view}} | attributes,
                "capacity": {"memory": {"value": memory}},
                "consumesCounters": [{"counterSet": f"gpu-{index}", "counters": wanted}],
            }
            if self._random.random() < 0.1:
                made["taints"] = [self._random.choice(TAINTS)]
            return made

        shared = device("shared", f"gpu-{index}-shared", "80Gi", "7")
        shared |= {"allowMultipleAllocations": True, "capacity": self._shareable()}
        monitor = device("monitor", f"gpu-{index}-monitor", "80Gi", "7")
        monitor |= {"allowMultipleAllocations": True}
        del monitor["consumesCounters"], monitor["capacity"]
        parts = [device("mig", f"gpu-{index}-mig-{start}", "20Gi", "2") for start in (0, 2, 4)] if mig else []
        parts += [device("mig", f"gpu-{index}-mig-half", "40Gi", "4")] if mig else []
        return {
            "gpu": device("gpu", f"gpu-{index}", "80Gi", "7"),
            "shared": shared,
            "monitor": monitor,
            "mig": parts,
        }

    def _shareable(self) -> dict[str, Any]:
        def capacity(value: str, default: str, **valid: Any) -> dict[str, Any]:
            return {"value": value, "requestPolicy": {"default": default, **valid}}

        capacities = {
            "computePercent": capacity("100", "1", validRange={"min": "1", "step": "1"}),
            "memory": capacity("80Gi", "1Gi", validRange={"min": "1Gi"}),
            "clients": capacity("48", "1", validRange={"min": "1"}),
            "nvlinkBandwidth": capacity("450G", "0", validRange={"min": "0"}),
        }
        if self._random.random() < 0.2:
            capacities["memory"] = capacity("80Gi", "2Gi", validRange={"min": "2Gi", "step": "3Gi", "max": "71Gi"})
        if self._random.random() < 0.2:
            capacities["clients"] = capacity("48", "1", validValues=["1", "2", "4", "8"])
        if self._random.random() < 0.1:
            capacities["nvlinkBandwidth"] = {"value": "450G"}
        return capacities

    def _nics(self) -> None:
        devices = [
            {"name": f"nic-{index}", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": f"pci{index % 2}"}}}
            for index in range(self._random.randint(1, 3))
        ]
        where = self._random.choice(["node", "all", "zone", "device"])
        spec: dict[str, Any] = {}
        in_a = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
        if where == "all":
            spec = {"allNodes": True}
        elif where == "zone":
            spec = {"nodeSelector": in_a}
        elif where == "device":
            spec = {"perDeviceNodeSelection": True}
            for device in devices:
                here = [{"nodeName": "node-0"}, {"nodeName": "node-1"}, {"nodeSelector": in_a}]
                device.update(self._random.choice(here))
        self._finish([self._slice(NIC, "fabric", "fabric-0", devices=devices, **spec)], generation=1)

    def _spoil(self) -> None:
        """Make a pool incomplete or contradictory."""
        gpus = [published for published in self.slices if published["spec"]["driver"] == GPU]
        kind = self._random.choice(["missing", "newer elsewhere", "no counter", "twice"])
        if kind == "missing":
            self.slices.remove(self._random.choice(gpus))
        elif kind == "newer elsewhere":
            newer = copy.deepcopy(gpus[0])
            newer["metadata"]["name"] = "node-0-newer"
            newer["spec"]["nodeName"] = "node-1"
            newer["spec"]["pool"]["generation"] += 1
            self.slices.append(newer)
            self.slices.remove(gpus[-1])
        elif kind == "no counter":
            del next(item for item in gpus if "sharedCounters" in item["spec"])["spec"]["sharedCounters"][0]
        else:
            first = next(item for item in gpus if item["spec"].get("devices"))["spec"]["devices"]
            first.append(copy.deepcopy(first[0]))

    def _claim(self, name: str) -> dict[str, Any]:
        requests = [self._request(f"r{index}") for index in range(self._random.choice([1, 1, 2, 3]))]
        devices: dict[str, Any] = {"requests": requests}
        names = [request["name"] for request in requests]
        if self._random.random() < 0.35:
            attribute = self._random.choice(
                ["gpu.nvidia.com/nvlinkGroup", "resource.kubernetes.io/pcieRoot", "gpu.nvidia.com/uuid"]
            )
            kind = self._random.choice(["matchAttribute", "distinctAttribute"])
            scope = self._random.choice([[], names, names[:1]])
            devices["constraints"] = [{kind: attribute, "requests": scope}]
        if self._random.random() < 0.3:
            config = {"opaque": {"driver": GPU, "parameters": {"kind": "Mine"}}}
            devices["config"] = [config | {"requests": self._random.choice([[], names[:1], names, [f"{names[0]}/s0"]])}]
        return {"metadata": {"name": name, "namespace": "ml"}, "spec": {"devices": devices}}

    def _request(self, name: str) -> dict[str, Any]:
        if self._random.random() < 0.2:
            subs = [self._asked() | {"name": f"s{index}"} for index in range(self._random.randint(1, 3))]
            for sub in subs:
                sub.pop("adminAccess", None)
            return {"name": name, "firstAvailable": subs}
        return {"name": name, "exactly": self._asked()}

    def _asked(self) -> dict[str, Any]:
        names = [entry["metadata"]["name"] for entry in CLASSES]
        asked: dict[str, Any] = {
            "deviceClassName": self._random.choices([*names, "nowhere"], [4, 8, 2, 2, 2, 0.5, 0.2])[0],
            "allocationMode": "ExactCount",
            "count": self._random.choice([1, 1, 1, 1, 2, 3, 40 if self._random.random() < 0.1 else 1]),
        }
        if self._random.random() < 0.1:
            asked |= {"allocationMode": "All"}
            del asked["count"]
        if self._random.random() < 0.3:
            asked["selectors"] = [{"cel": {"expression": self._random.choice(SELECTORS)}}]
        if self._random.random() < 0.25:
            asked["tolerations"] = [self._random.choice([{"operator": "Exists"}, TAINTS[0] | {"operator": "Equal"}])]
        if asked["deviceClassName"].startswith("monitor") or self._random.random() < 0.08:
            asked["adminAccess"] = self._random.random() < 0.9
        if asked["deviceClassName"].startswith("shared") or self._random.random() < 0.08:
            asked["capacity"] = {"requests": self._amounts()}
        return asked

    def _amounts(self) -> dict[str, str]:
        offered = {
            "computePercent": ["20", "0.5", "33", "100", "101", "12300m", "2e1"],
            "memory": ["10Gi", "1024Mi", "1500Mi", "8e9", "8G", "80Gi", "1", "73Gi"],
            "clients": ["3", "1", "48", "9"],
            "nvlinkBandwidth": ["100G", "450G", "0"],
            "gpu.nvidia.com/memory": ["1Gi"],
        }
        weights = {"gpu.nvidia.com/memory": 0.03}
        return {
            name: self._random.choice(texts)
            for name, texts in offered.items()
            if self._random.random() < weights.get(name, 0.5)
        }
