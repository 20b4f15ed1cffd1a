"""Records for claims that hold devices according to their CDI files but not according to the journal.

That happens when the journal was damaged or lost: effects are always undone before their record is deleted. Pure.
"""

from dra_gpu.cdi.spec import Spec
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice
from dra_gpu.claims.record import Access, Hold, Record, State
from dra_gpu.claims.steps import CLAIM_VARIABLE, CdiDevice, WriteCdiSpec
from dra_gpu.inventory.devices import Inventory, PublishedDevice
from dra_gpu.inventory.model import View


def adopted(uid: str, spec: Spec, *, pool: str, boot_id: str, inventory: Inventory) -> Record | None:
    """Return the record for a CDI file without one; None when the file names no device of this node.

    Whole GPUs are held as the file says; which configs were applied, the claim itself tells later.

    Args:
        uid: the claim's UID, from the file's name.
        spec: the file.
        pool: our pool.
        boot_id: the present boot.
        inventory: what the node offers.
    """
    found = [
        (device.name, published)
        for device in spec.devices
        if (published := inventory.devices.get(device.name.removeprefix(f"{uid}-"))) is not None
    ]
    if not found or len(found) < len(spec.devices):
        return None
    claim = _claim_name(spec)
    namespace, _, name = claim.partition("/")
    cdi_devices = tuple(CdiDevice(cdi_name, it.name, it.gpu.uuid, it.view) for cdi_name, it in found)
    return Record(
        ref=ClaimRef(namespace, name, uid),
        boot_id=boot_id,
        state=State.PREPARED,
        devices=tuple(PreparedDevice((), pool, it.name, (f"{spec.kind}={cdi_name}",)) for cdi_name, it in found),
        steps=(WriteCdiSpec(uid, claim, cdi_devices),),
        holds=tuple(Hold(it.name, it.gpu.uuid, _access(it)) for _, it in found),
        adopted=True,
    )


def _claim_name(spec: Spec) -> str:
    prefix = f"{CLAIM_VARIABLE}="
    values = (entry.removeprefix(prefix) for entry in spec.container_edits.env if entry.startswith(prefix))
    return next(values, "")


def _access(device: PublishedDevice) -> Access:
    if device.view is View.MONITOR:
        return Access.OBSERVER
    return Access.EXCLUSIVE if device.exclusive else Access.SHARED
