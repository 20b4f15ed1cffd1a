"""Records for claims that hold devices according to their CDI files but not according to the journal.

That happens when the journal was damaged or lost: effects are always undone before their record is deleted. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dra_gpu.cdi.spec import Spec
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice
from dra_gpu.claims.record import Access, Hold, Record, State
from dra_gpu.claims.shares import MpsShare, is_share_id, share_name
from dra_gpu.claims.steps import CLAIM_VARIABLE, CdiDevice, ShareOnMps, WriteCdiSpec
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import View
from dra_gpu.inventory.sharing import MpsProtocol

_SHARE_ID_LENGTH = 36  # a UUID as text


def adopted(uid: str, spec: Spec, *, pool: str, boot_id: str, inventory: Inventory) -> Record | None:
    """Return the record for a CDI file without one; None when the file names no device of this node.

    GPUs and shares are held as the file says; how much a share has and which configs were applied, the claim itself
    tells later.

    Args:
        uid: the claim's UID, from the file's name.
        spec: the file.
        pool: our pool.
        boot_id: the present boot.
        inventory: what the node offers.
    """
    found = [one for device in spec.devices if (one := _found(uid, device.name, inventory)) is not None]
    if not found or len(found) < len(spec.devices):
        return None
    claim = _claim_name(spec)
    namespace, _, name = claim.partition("/")
    cdi_devices = tuple(CdiDevice(it.cdi_name, it.device.name, it.device.gpu.uuid, it.device.view) for it in found)
    return Record(
        ref=ClaimRef(namespace, name, uid),
        boot_id=boot_id,
        state=State.PREPARED,
        devices=tuple(
            PreparedDevice((), pool, it.device.name, (f"{spec.kind}={it.cdi_name}",), it.share_id or None)
            for it in found
        ),
        steps=(*_shares(found), WriteCdiSpec(uid, claim, cdi_devices)),
        holds=tuple(Hold(it.device.name, it.device.gpu.uuid, _access(it.device), it.share_id) for it in found),
        adopted=True,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A device of a CDI file, and what is published under its name."""

    cdi_name: str
    device: PublishedDevice
    share_id: str


def _found(uid: str, cdi_name: str, inventory: Inventory) -> _Found | None:
    name = cdi_name.removeprefix(f"{uid}-")
    device = inventory.devices.get(name)
    if device is not None:
        return _Found(cdi_name, device, "")
    share_id = name[-_SHARE_ID_LENGTH:]
    device = inventory.devices.get(name[: -_SHARE_ID_LENGTH - 1])
    return _Found(cdi_name, device, share_id) if device is not None and is_share_id(share_id) else None


def _shares(found: Iterable[_Found]) -> tuple[ShareOnMps, ...]:
    """Return steps by which shares can be given up; their limits, the claim tells later."""
    return tuple(
        ShareOnMps(it.device.gpu.uuid, MpsShare(share_name(it.share_id), MpsProtocol.CLASSIC))
        for it in found
        if it.device.view is View.SHARED and it.share_id
    )


def _claim_name(spec: Spec) -> str:
    prefix = f"{CLAIM_VARIABLE}="
    values = (entry.removeprefix(prefix) for entry in spec.container_edits.env if entry.startswith(prefix))
    return next(values, "")


def _access(device: PublishedDevice) -> Access:
    if device.view is View.MONITOR:
        return Access.OBSERVER
    return Access.EXCLUSIVE if device.exclusive else Access.SHARED
