"""What a container runtime would refuse in a CDI specification, found before the file is written.

A runtime that meets a file it cannot accept drops the whole file, and the container that needs it fails with nothing
but "unresolvable CDI devices". Here the fault is named instead.
Source: tags.cncf.io/container-device-interface v1.1.1, pkg/parser/parser.go, pkg/cdi/{spec,device,container-edits}.go.
"""

import re
from collections import Counter
from collections.abc import Iterator

from dra_gpu.cdi.spec import ContainerEdits, Spec

_VENDOR_OR_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_HOOKS = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"},
)
_NODE_TYPES = frozenset({"", "b", "c", "u", "p"})
_PERMISSIONS = re.compile(r"(?:[rwm]*|none)")


class InvalidSpecError(ValueError):
    """The specification would be refused by every runtime; the message lists each fault and the device it is in."""


class EmptyDeviceError(InvalidSpecError):
    """A device adds nothing to a container. Its container would start without the hardware, so it is refused."""


def validate(spec: Spec) -> None:
    """Refuse a specification that no runtime would load.

    Raises:
        EmptyDeviceError: a device without a single edit.
        InvalidSpecError: anything else that runtimes refuse.
    """
    empty = [device.name for device in spec.devices if device.container_edits == ContainerEdits()]
    if empty:
        raise EmptyDeviceError(
            f"CDI specification of kind {spec.kind!r}: device {', '.join(empty)} has no edits, its container would "
            "start without the hardware. The driver installation was incomplete when the edits were made; try again."
        )
    faults = [*_naming_faults(spec), *_edit_faults("all devices", spec.container_edits)]
    for device in spec.devices:
        faults += _edit_faults(f"device {device.name}", device.container_edits)
    if faults:
        raise InvalidSpecError(f"CDI specification of kind {spec.kind!r}: {'; '.join(faults)}")


def _naming_faults(spec: Spec) -> Iterator[str]:
    vendor, _, kind = spec.kind.partition("/")
    if not _VENDOR_OR_CLASS.fullmatch(vendor) or not _VENDOR_OR_CLASS.fullmatch(kind):
        yield "the kind is not <vendor>/<class> of letters, digits, '_', '-' and '.', each starting with a letter"
    if not spec.devices:
        yield "it has no devices"
    for name, count in Counter(device.name for device in spec.devices).items():
        if count > 1:
            yield f"device {name} stands in it {count} times"
        if not _DEVICE_NAME.fullmatch(name):
            yield f"device name {name!r} is not made of letters, digits, '_', '-', '.' and ':'"


def _edit_faults(where: str, edits: ContainerEdits) -> Iterator[str]:
    for variable in (*edits.env, *(entry for hook in edits.hooks for entry in hook.env)):
        if not variable.partition("=")[0] or "=" not in variable:
            yield f"{where}: environment entry {variable!r} is not NAME=value"
    for node in edits.device_nodes:
        if not node.path or node.type not in _NODE_TYPES or not _PERMISSIONS.fullmatch(node.permissions):
            yield f"{where}: device node {node.path!r} has no path, or an unknown type or permission"
    for mount in edits.mounts:
        if not mount.host_path or not mount.container_path:
            yield f"{where}: mount {mount.host_path!r} on {mount.container_path!r} lacks a path"
    for hook in edits.hooks:
        if hook.hook_name not in _HOOKS or not hook.path:
            yield f"{where}: hook {hook.path!r} has no path, or {hook.hook_name!r} is no OCI hook"
