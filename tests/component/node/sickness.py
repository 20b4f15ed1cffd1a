"""A node whose GPUs become sick, and short words for what others see of it."""

from collections.abc import Callable, Sequence

from dra_gpu.api.cordon import CLEAR_ANNOTATION
from dra_gpu_sim.apiserver import resources
from tests.component.node.node_under_fire import PATIENCE

VIEWS = "--views=gpu,shared,monitor"
DEVICES = 3
"""Of each GPU."""


class Sickness:
    """A node with a plugin that watches."""

    def __init__(self, world) -> None:
        self.world, self.node, self.api = world, world.node, world.api

    async def start(self, *more: str, devices: int, views: str = VIEWS) -> "Sickness":
        """Start the plugin, and wait until it has all GPUs' events; what came earlier nobody would report."""
        self.node.forget_calls()
        await self.world.start(views, *more, devices=devices)
        return await self.watched()

    async def restart(self, *more: str, views: str = VIEWS) -> None:
        """Kill the plugin, and start another."""
        self.node.forget_calls()
        await self.world.restart(views, *more)
        await self.watched()

    async def watched(self) -> "Sickness":
        """Wait until the events of all GPUs have been asked for."""
        await self.world.until(lambda: len(self.node.calls("nvmlDeviceRegisterEvents")) >= len(self.node.gpus))
        return self

    def taints(self) -> dict[str, dict[str, tuple[str, str]]]:
        """Value and effect of each taint, by device and the last part of the key; devices without are left out."""
        return {
            device["name"]: {
                one["key"].rpartition("/")[2]: (one.get("value", ""), one["effect"]) for one in device["taints"]
            }
            for item in self.world.cluster.slices()
            for device in item["spec"].get("devices", ())
            if device.get("taints")
        }

    def times(self) -> set[str]:
        """When the taints of all devices came."""
        return {
            one["timeAdded"]
            for item in self.world.cluster.slices()
            for device in item["spec"].get("devices", ())
            for one in device.get("taints", ())
        }

    async def until_taints(self, condition: Callable[[dict[str, dict[str, tuple[str, str]]]], bool]) -> None:
        """Wait until the API server has taints of which something holds."""
        await self.api.log.wait_for(lambda _: condition(self.taints()), PATIENCE)

    async def until_tainted(self, *devices: str, by: Sequence[str]) -> None:
        """Wait until exactly these devices are tainted, each by exactly these."""
        await self.until_taints(
            lambda found: {name: set(of) for name, of in found.items()} == {key: set(by) for key in devices}
        )

    def told(self, reason: str) -> list[tuple[str, str, str]]:
        """Kind and name of what each Event of a reason is about, and its note."""
        return [
            (one["involvedObject"]["kind"], one["involvedObject"]["name"], one["message"])
            for one in self.api.objects("events")
            if one["reason"] == reason
        ]

    async def until_told(self, reason: str, *about: tuple[str, str]) -> None:
        """Wait until exactly these objects have an Event of a reason."""
        await self.api.log.wait_for(lambda _: sorted(one[:2] for one in self.told(reason)) == sorted(about), PATIENCE)

    def healthy(self, claim) -> dict[str, str]:
        """The condition Healthy of each device of a claim."""
        (found,) = [one for one in self.api.objects("resourceclaims") if one["metadata"]["uid"] == claim.uid]
        return {
            device["device"]: condition["status"]
            for device in found["status"].get("devices", ())
            for condition in device.get("conditions", ())
            if condition["type"] == "Healthy"
        }

    async def until_healthy(self, claim, **devices: str) -> None:
        """Wait until a claim's status says so of its devices, named with `_` for `-`."""
        wanted = {name.replace("_", "-"): status for name, status in devices.items()}
        await self.api.log.wait_for(lambda _: self.healthy(claim) == wanted, PATIENCE)

    async def reset(self, gpu: int) -> None:
        """Let it be reset: whatever was wrong with it is gone, and so is everything on it."""
        self.node.unbind_gpu(gpu)
        self.node.bind_gpu(gpu)

    def clear(self, *uuids: str) -> None:
        """Let a person call GPUs well."""
        (node,) = self.api.objects("nodes")
        changed = node | {"metadata": node["metadata"] | {"annotations": {CLEAR_ANNOTATION: ",".join(uuids)}}}
        self.api.store.replace(resources.by_plural("nodes"), "", node["metadata"]["name"], changed, status_only=False)
