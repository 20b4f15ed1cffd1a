"""ResourceSlices as the cluster has them, and a watch that remembers when what changed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lab.api import Api, Event, path_of

from tests.e2e.harness.waiting import PATIENCE

Json = dict[str, Any]
SLICES = path_of("resource.k8s.io/v1", "resourceslices")
DRIVER = "gpu.nvidia.com"


def slices_of(api: Api, node_name: str) -> list[Json]:
    """Return the driver's slices of a node, in the order of their names, which is the scheduler's."""
    items = api.items(SLICES, fieldSelector=f"spec.driver={DRIVER},spec.nodeName={node_name}")
    return sorted(items, key=lambda item: item["metadata"]["name"])


def devices_of(api: Api, node_name: str, view: str = "gpu") -> dict[str, Json]:
    """Return the devices of one view by name, of a complete pool; nothing while the pool is incomplete."""
    found = slices_of(api, node_name)
    if not found:
        return {}
    generation = max(item["spec"]["pool"]["generation"] for item in found)
    current = [item for item in found if item["spec"]["pool"]["generation"] == generation]
    if len(current) != current[0]["spec"]["pool"]["resourceSliceCount"]:
        return {}
    return {
        device["name"]: device
        for item in current
        for device in item["spec"].get("devices", [])
        if device["attributes"]["type"]["string"] == view
    }


def uuid_of(device: Json) -> str:
    """Return the GPU's UUID."""
    value: str = device["attributes"]["uuid"]["string"]
    return value


@dataclass
class SliceWatch:
    """The events of the driver's slices on a node since the watch began."""

    events: list[Event] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, what: str, seconds: float, check: Callable[[list[Event]], bool]) -> None:
        """Wait until `check` holds for the events so far; raises AssertionError naming `what`."""
        with self._changed:
            held = self._changed.wait_for(lambda: check(self.events), max(seconds, PATIENCE))
        assert held, f"{what}: not within {max(seconds, PATIENCE):.0f} s; seen: {self.summary()}"

    def summary(self) -> list[str]:
        """Return the events as short texts."""
        return [
            f"{event.kind} {event.object['metadata']['name']} generation {event.object['spec']['pool']['generation']}"
            for event in self.events
        ]

    def add(self, event: Event) -> None:
        """Take in an event; called by the watching thread."""
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


@contextmanager
def watch_slices(api: Api, node_name: str, seconds: float = 600.0) -> Iterator[SliceWatch]:
    """Watch from now on; the thread ends with the connection, which the end of the block closes."""
    selector = f"spec.driver={DRIVER},spec.nodeName={node_name}"
    version = api.get(SLICES, fieldSelector=selector)["metadata"]["resourceVersion"]
    request = api.watch(SLICES, seconds, fieldSelector=selector, resourceVersion=version)
    watch = SliceWatch()

    def read() -> None:
        for event in request:
            watch.add(event)

    thread = threading.Thread(target=read, name=f"watch slices of {node_name}", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        request.close()
        thread.join(5.0)
