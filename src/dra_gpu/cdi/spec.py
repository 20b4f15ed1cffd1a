"""A CDI specification: types, and the lowest version that a specification needs.

Runtimes refuse a specification whose declared version is lower than its features need, and also one newer than they
know; so the lowest sufficient version is written.
Source: Container Device Interface specification v1.1.0, SPEC.md and specs-go/version.go `MinimumRequiredVersion`. That
function, being compiled with Go 1.19's loop variables, overlooks host paths and mount types in all devices but the
last; the rule here is the specification's.
"""

from typing import TypeVar

import msgspec

T = TypeVar("T")

_DIGITS = frozenset("0123456789")  # and no other script's: the rule counts these alone


class _Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A camelCase object whose unset fields are not written."""


class DeviceNode(_Wire, frozen=True):
    """A device node in the container; `host_path` differs from `path` when the host keeps its nodes elsewhere."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    permissions: str = ""


class Mount(_Wire, frozen=True):
    """A bind mount. `options` are mount(8) options such as `ro`, `nosuid`, `rbind`."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Wire, frozen=True):
    """An OCI hook that the runtime runs: `createContainer` for those that change the root file system."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class ContainerEdits(_Wire, frozen=True):
    """Everything that a device adds to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = msgspec.field(name="additionalGids", default=())

    def merged(self, other: "ContainerEdits") -> "ContainerEdits":
        """Return both edits as one, `other` last, each entry once."""
        return ContainerEdits(
            env=_union(self.env, other.env),
            device_nodes=_union(self.device_nodes, other.device_nodes),
            mounts=_union(self.mounts, other.mounts),
            hooks=_union(self.hooks, other.hooks),
            additional_gids=_union(self.additional_gids, other.additional_gids),
        )


class Device(_Wire, frozen=True):
    """A named device of a specification."""

    name: str
    container_edits: ContainerEdits


class Spec(_Wire, frozen=True):
    """A CDI specification file. A device's id is `<kind>=<device name>`."""

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = ContainerEdits()


def minimum_version(spec: Spec) -> str:
    """Return the lowest CDI version whose features cover the specification; its own `cdi_version` is not looked at."""
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    if any(edit.additional_gids for edit in edits):
        return "0.7.0"
    if "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    nodes = (node for edit in edits for node in edit.device_nodes)
    if any(node.host_path for node in nodes) or any(device.name[:1] in _DIGITS for device in spec.devices):
        return "0.5.0"
    if any(mount.type for edit in edits for mount in edit.mounts):
        return "0.4.0"
    return "0.3.0"


def _union(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
    return first + tuple(entry for entry in second if entry not in first)
