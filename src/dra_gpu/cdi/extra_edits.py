"""What an operator adds to every container with a GPU: nodes and files of GPUDirect Storage, GDRCopy, InfiniBand, ...

The file is JSON: one object, or a list of them, in the shape of a CDI specification's edits:

    {"containerEdits": {"deviceNodes": [{"path": "/dev/nvidia-fs*"},
                                        {"path": "/dev/gdrdrv", "required": true}],
                        "mounts": [{"hostPath": "/etc/cufile.json", "containerPath": "/etc/cufile.json"}],
                        "env": ["CUFILE_ENV_PATH_JSON=/etc/cufile.json"]}}

What is not there is left out, unless it is `required`. Paths of nodes may be patterns (`*`, `?`, `[…]`); they are
looked up each time, so that a module loaded later is seen.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from dra_gpu.cdi.device_nodes import PERMISSIONS, NoDeviceNodeError, read_device_node
from dra_gpu.cdi.host_directory import HostDirectory
from dra_gpu.cdi.spec import ContainerEdits, DeviceNode, Mount

_PATTERN_CHARACTERS = frozenset("*?[")
_DEV = PurePosixPath("/dev")
_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_VARIABLE = re.compile(r"[^=\0]+=[^\0]*")
_PERMISSIONS = re.compile(r"[rwm]+")


class ExtraEditsError(ValueError):
    """The operator's file cannot be used; the message names the file, the field and what is expected there."""


class MissingExtraError(Exception):
    """Something that the operator marked as required is not on the node; the message names it and the way out."""


class _Strict(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    """An object in which a misspelt field is an error."""


class ExtraDeviceNode(_Strict, frozen=True):
    """Device nodes by path or pattern below `/dev`; `permissions` are the cgroup's: any of `r`, `w`, `m`."""

    path: str
    permissions: str = PERMISSIONS
    required: bool = False


class ExtraMount(_Strict, frozen=True):
    """A bind mount of a file or directory; read-only unless `options` say otherwise."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = _MOUNT_OPTIONS
    required: bool = False


class ExtraEdits(_Strict, frozen=True):
    """Additions to every container with a GPU."""

    device_nodes: tuple[ExtraDeviceNode, ...] = ()
    mounts: tuple[ExtraMount, ...] = ()
    env: tuple[str, ...] = ()

    def on_node(self, dev: HostDirectory, host: HostDirectory | None) -> ContainerEdits:
        """Return what of the additions is there now.

        Args:
            dev: the directory of device nodes.
            host: the host's root; None when this process does not see it, mounts are then taken as being there.

        Raises:
            MissingExtraError: something required is not there; names everything that is missing.
        """
        missing: list[str] = []
        nodes: list[DeviceNode] = []
        for wanted in self.device_nodes:
            found = list(_nodes(wanted, dev))
            if wanted.required and not found:
                missing.append(wanted.path)
            nodes += (node for node in found if node not in nodes)
        mounts: list[Mount] = []
        for mount in self.mounts:
            if host is None or _exists(host, mount.host_path):
                mounts.append(Mount(mount.host_path, mount.container_path, mount.options))
            elif mount.required:
                missing.append(mount.host_path)
        if missing:
            raise MissingExtraError(
                f"{', '.join(missing)} required by the additional container edits cannot be found on this node; load "
                "the module or install the software it belongs to, or take `required` away"
            )
        return ContainerEdits(env=self.env, device_nodes=tuple(nodes), mounts=tuple(mounts))


class _Entry(_Strict, frozen=True):
    container_edits: ExtraEdits


def load_extra_edits(file: Path) -> ExtraEdits:
    """Read the operator's file; several entries are joined in their order.

    Raises:
        ExtraEditsError: it cannot be read, is not such a file, or a field has a value that cannot work.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ExtraEditsError(f"additional container edits {file}: {error.strerror}; check the path") from error
    try:
        if content.lstrip().startswith(b"["):
            entries = msgspec.json.decode(content, type=tuple[_Entry, ...])
        else:
            entries = (msgspec.json.decode(content, type=_Entry),)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExtraEditsError(f"additional container edits {file}: {error}") from error
    faults = [fault for index, entry in enumerate(entries) for fault in _faults(index, entry.container_edits)]
    if faults:
        raise ExtraEditsError(f"additional container edits {file}: {'; '.join(faults)}")
    return ExtraEdits(
        device_nodes=tuple(node for entry in entries for node in entry.container_edits.device_nodes),
        mounts=tuple(mount for entry in entries for mount in entry.container_edits.mounts),
        env=tuple(variable for entry in entries for variable in entry.container_edits.env),
    )


def _faults(index: int, edits: ExtraEdits) -> Iterator[str]:
    where = f"[{index}].containerEdits"
    for position, node in enumerate(edits.device_nodes):
        path = PurePosixPath(node.path)
        if not path.is_relative_to(_DEV) or path == _DEV or ".." in path.parts:
            yield f"{where}.deviceNodes[{position}].path: {node.path!r} is not a path below /dev"
        if not _PERMISSIONS.fullmatch(node.permissions):
            yield f"{where}.deviceNodes[{position}].permissions: {node.permissions!r} is not made of r, w and m"
    for position, mount in enumerate(edits.mounts):
        for field, place in (("hostPath", mount.host_path), ("containerPath", mount.container_path)):
            if not place.startswith("/") or ".." in PurePosixPath(place).parts:
                yield f"{where}.mounts[{position}].{field}: {place!r} is not an absolute path without '..'"
    for position, variable in enumerate(edits.env):
        if not _VARIABLE.fullmatch(variable):
            yield f"{where}.env[{position}]: {variable!r} is not NAME=value"


def _nodes(wanted: ExtraDeviceNode, dev: HostDirectory) -> Iterator[DeviceNode]:
    """Yield the nodes that are there, in the order of their names; whatever else a pattern meets is left out."""
    name = PurePosixPath(wanted.path).relative_to(_DEV)
    names = [name]
    if not _PATTERN_CHARACTERS.isdisjoint(wanted.path):
        names = sorted(PurePosixPath(path.relative_to(dev.process)) for path in dev.process.glob(str(name)))
    for candidate in names:
        try:
            yield read_device_node(dev, candidate, wanted.permissions)
        except NoDeviceNodeError:
            continue


def _exists(host: HostDirectory, path: str) -> bool:
    try:
        host.resolve(PurePosixPath(path))
    except OSError:
        return False
    return True
