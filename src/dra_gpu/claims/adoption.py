"""Records for claims that hold devices according to their CDI files but not according to the journal.

That happens when the journal was damaged or lost: effects are always undone before their record is deleted. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dra_gpu.api.resource_v1 import Device as WireDevice
from dra_gpu.cdi.spec import Device, Spec
from dra_gpu.claims.items import hold_of
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice
from dra_gpu.claims.record import Record, State
from dra_gpu.claims.shares import MpsShare, is_share_id, share_name
from dra_gpu.claims.steps import (
    CLAIM_VARIABLE,
    FOREIGN_VARIABLE,
    CdiDevice,
    CreateMigInstance,
    ShareOnMps,
    WriteCdiSpec,
)
from dra_gpu.inventory import naming
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import View
from dra_gpu.inventory.sharing import MpsProtocol

_SHARE_ID_LENGTH = 36  # a UUID as text


def adopted(uid: str, spec: Spec, *, pool: str, boot_id: str, inventory: Inventory) -> Record | None:
    """Return the record for a CDI file without one; None when the file names no device of this node.

    GPUs, partitions and shares are held as the file says; how much a share has and which configs were applied, the
    claim itself tells later.

    Args:
        uid: the claim's UID, from the file's name.
        spec: the file.
        pool: our pool.
        boot_id: the present boot.
        inventory: what the node offers.
    """
    found = [one for device in spec.devices if (one := _found(uid, device, inventory)) is not None]
    if not found or len(found) < len(spec.devices):
        return None
    claim = _claim_name(spec)
    namespace, _, name = claim.partition("/")
    cdi_devices = tuple(
        CdiDevice(
            it.cdi_name,
            it.device.name,
            it.device.gpu.uuid,
            it.device.view,
            placement=it.device.placement,
            foreign=it.foreign,
        )
        for it in found
    )
    return Record(
        ref=ClaimRef(namespace, name, uid),
        boot_id=boot_id,
        state=State.PREPARED,
        devices=tuple(
            PreparedDevice((), pool, it.device.name, (f"{spec.kind}={it.cdi_name}",), it.share_id or None)
            for it in found
        ),
        steps=(*_partitions(uid, found), *_shares(found), WriteCdiSpec(uid, claim, cdi_devices)),
        holds=tuple(hold_of(it.device, it.share_id, observer=it.device.view is View.MONITOR) for it in found),
        lock_keys=tuple(sorted({naming.slot(it.device.gpu) for it in found})),
        adopted=True,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A device of a CDI file, and what is published under its name."""

    cdi_name: str
    device: PublishedDevice
    share_id: str
    foreign: bool


def _found(uid: str, entry: Device, inventory: Inventory) -> _Found | None:
    name = entry.name.removeprefix(f"{uid}-")
    foreign = any(variable.startswith(f"{FOREIGN_VARIABLE}=") for variable in entry.container_edits.env)
    device = _device(name, inventory)
    if device is not None:
        return _Found(entry.name, device, "", foreign)
    share_id = name[-_SHARE_ID_LENGTH:]
    device = _device(name[: -_SHARE_ID_LENGTH - 1], inventory)
    return _Found(entry.name, device, share_id, foreign) if device is not None and is_share_id(share_id) else None


def _device(name: str, inventory: Inventory) -> PublishedDevice | None:
    """Return a device by its name; a partition also where the node does not offer it any more."""
    known = inventory.devices.get(name)
    parsed = naming.parse_partition(name)
    if known is not None or parsed is None:
        return known
    of_gpu = (it for it in inventory.devices.values() if it.name == parsed.gpu or it.name.startswith(f"{parsed.gpu}-"))
    sibling = next(of_gpu, None)
    if sibling is None:
        return None
    places = (
        place for kind in sibling.gpu.mig_profiles if kind.profile_id == parsed.profile_id for place in kind.placements
    )
    placement = next((place for place in places if place.start == parsed.start), None)
    if placement is None:
        return None
    view = View.SHARED_MIG if parsed.shared else View.MIG
    return PublishedDevice(name, view, sibling.gpu, WireDevice(name=name), placement)


def _partitions(uid: str, found: Iterable[_Found]) -> tuple[CreateMigInstance, ...]:
    """Return steps by which partitions are destroyed with their last claim, but for an administrator's."""
    return tuple(
        dict.fromkeys(
            CreateMigInstance(it.device.gpu.uuid, it.device.placement, uid, it.foreign)
            for it in found
            if it.device.placement is not None
        )
    )


def _shares(found: Iterable[_Found]) -> tuple[ShareOnMps, ...]:
    """Return steps by which shares can be given up; their limits, the claim tells later."""
    return tuple(
        ShareOnMps(it.device.gpu.uuid, MpsShare(share_name(it.share_id), MpsProtocol.CLASSIC), it.device.placement)
        for it in found
        if it.device.view in (View.SHARED, View.SHARED_MIG) and it.share_id
    )


def _claim_name(spec: Spec) -> str:
    prefix = f"{CLAIM_VARIABLE}="
    values = (entry.removeprefix(prefix) for entry in spec.container_edits.env if entry.startswith(prefix))
    return next(values, "")
