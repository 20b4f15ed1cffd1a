"""Other settings of a GPU or partition that a claim has whole: its time slice, or the limits of its processes. Pure.

No capacity moves: the scheduler has given the claim all of it.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from dra_gpu.api import nvidia_v1beta1
from dra_gpu.api.claim_resize import ClaimResize, MpsSettings
from dra_gpu.api.quantity import InvalidQuantityError
from dra_gpu.claims.resize.state import Settings, ShareKey
from dra_gpu.claims.shares import MpsShare, claim_share_name
from dra_gpu.claims.steps import CdiDevice, SetTimeSlice, ShareOnMps, Step, WriteCdiSpec
from dra_gpu.inventory import amounts
from dra_gpu.mps.service import Limits


def key_of(resize: ClaimResize, driver: str, pool: str) -> ShareKey | None:
    """Return the device had whole that an object is about; None where it is another node's, or a share.

    One that several claims have at once, each as a whole, has a share id and was allocated nothing of its capacities.
    """
    target = resize.status.target
    if target is None or (target.driver, target.pool) != (driver, pool):
        return None
    try:
        is_share = target.share_id is not None and bool(amounts.parse(resize.status.allocated).compute_percent)
    except InvalidQuantityError:
        return None
    return None if is_share else ShareKey(target.claim_uid, target.device, "")


def over(steps: Sequence[Step], settings: Settings) -> tuple[Step, ...]:
    """Return steps with other settings; what they do not name stays as it was planned."""
    device = device_of(steps, settings)
    if device is None:
        return tuple(steps)
    found = tuple(_step(step, device, settings) for step in steps)
    if settings.time_slice is None or any(_slices(step, device) for step in found):
        return found
    added = SetTimeSlice(device.gpu, settings.time_slice, settings.former)
    return (*found[:-1], added, found[-1])  # the file stays the last one


def device_of(steps: Sequence[Step], settings: Settings) -> CdiDevice | None:
    """Return the device as the claim's file has it."""
    files = (step for step in steps if isinstance(step, WriteCdiSpec))
    return next((one for step in files for one in step.devices if one.device == settings.device), None)


def on_mps(steps: Sequence[Step], uid: str) -> ShareOnMps | None:
    """Return the step by which a claim shares a device that it has whole among its containers; None without one."""
    shares = (step for step in steps if isinstance(step, ShareOnMps))
    return next((step for step in shares if step.share.name == claim_share_name(uid)), None)


def wanted_limits(planned: Limits, wanted: MpsSettings) -> Limits:
    """Return limits of each process as they are wanted; what is not named is as planned.

    Raises:
        InvalidConfigError: the memory limit is no quantity.
    """
    percent, memory = wanted.active_thread_percentage, wanted.pinned_device_memory_limit
    return replace(
        planned,
        compute_percent=planned.compute_percent if percent is None else percent,
        memory_bytes=planned.memory_bytes
        if memory is None
        else nvidia_v1beta1.pinned_limit("mps.pinnedDeviceMemoryLimit", memory),
    )


def _slices(step: Step, device: CdiDevice) -> bool:
    return isinstance(step, SetTimeSlice) and step.gpu == device.gpu


def _step(step: Step, device: CdiDevice, settings: Settings) -> Step:
    name = claim_share_name(settings.uid)
    if isinstance(step, SetTimeSlice) and step.gpu == device.gpu and settings.time_slice is not None:
        return replace(step, interval=settings.time_slice)
    if isinstance(step, ShareOnMps) and step.share.name == name:
        return replace(step, share=_limited(step.share, settings))
    if isinstance(step, WriteCdiSpec):
        devices = tuple(
            replace(one, share=_limited(one.share, settings))
            if one.share is not None and one.share.name == name
            else one
            for one in step.devices
        )
        return replace(step, devices=devices)
    return step


def _limited(share: MpsShare, settings: Settings) -> MpsShare:
    return replace(share, limits=settings.mps or share.limits, former=settings.accepted or share.limits)
