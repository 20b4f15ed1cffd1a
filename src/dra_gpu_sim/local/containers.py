"""What a container runtime would do with CDI ids: find them in the specifications and collect their edits.

Source: Container Device Interface specification v1.1.0: a device's edits are the specification's own edits, once a
specification, and then those of the device; of two values of one variable the last wins.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dra_gpu.cdi.spec import ContainerEdits, Spec


class UnresolvableError(LookupError):
    """A CDI id is in no specification: the runtime would not start the container."""


@dataclass(slots=True)
class Container:
    """What the edits make of a container.

    Attributes:
        env: variables by name.
        nodes: path in the container by path on the host.
        mounts: path in the container by path on the host.
    """

    env: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)

    def apply(self, edits: ContainerEdits) -> None:
        """Add edits, the later ones winning."""
        self.env.update(entry.partition("=")[::2] for entry in edits.env)
        self.nodes.update({node.host_path or node.path: node.path for node in edits.device_nodes})
        self.mounts.update({mount.host_path: mount.container_path for mount in edits.mounts})


def with_devices(cdi_root: Path, ids: Iterable[str]) -> Container:
    """Return the container that a runtime would make for these CDI ids.

    Raises:
        UnresolvableError: an id is in no specification of the directory.
    """
    specs = [msgspec.json.decode(path.read_bytes(), type=Spec) for path in sorted(cdi_root.glob("*.json"))]
    container = Container()
    used: list[Spec] = []
    for device_id in ids:
        kind, _, name = device_id.partition("=")
        found = next(
            ((spec, device) for spec in specs if spec.kind == kind for device in spec.devices if device.name == name),
            None,
        )
        if found is None:
            raise UnresolvableError(f"unresolvable CDI device {device_id} in {cdi_root}")
        spec, device = found
        if spec not in used:
            used.append(spec)
            container.apply(spec.container_edits)
        container.apply(device.container_edits)
    return container
