"""Brings other settings of a GPU or partition that a claim has whole into force, and back to what was planned.

The claim's lock is held by the caller. What is wanted is in the journal before it is set, so that a claim that is
prepared again, or given back, knows of it.
"""

import asyncio
from dataclasses import dataclass

from msgspec.structs import replace

from dra_gpu.api.claim_resize import AppliesTo, ClaimResize, HeldProcess, NodeStatus
from dra_gpu.api.config_error import InvalidConfigError
from dra_gpu.api.nvidia_v1beta1 import TimeSliceInterval
from dra_gpu.cdi.store import SpecStoreError
from dra_gpu.claims.journal import Journal
from dra_gpu.claims.locks import GpuLocks
from dra_gpu.claims.record import Record
from dra_gpu.claims.resize import settings
from dra_gpu.claims.resize.decide import Presence
from dra_gpu.claims.resize.limits import WAITING
from dra_gpu.claims.resize.state import Settings, ShareKey
from dra_gpu.claims.steps import Machine, SetTimeSlice, WriteCdiSpec
from dra_gpu.inventory.sharing import MpsProtocol
from dra_gpu.mps.service import MpsError, MpsErrorKind
from dra_gpu.vendors.base import VendorError

_LOCK_S = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is said, and whether it is worth looking again by and by."""

    status: NodeStatus | None
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class _Obstacle:
    reason: str
    message: str
    processes: tuple[HeldProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class WholeDevices:
    """Settings of devices that claims have whole.

    Attributes:
        journal: what is known.
        machine: where settings are made.
        gpu_locks: one lock a GPU.
    """

    journal: Journal
    machine: Machine
    gpu_locks: GpuLocks

    async def visit(
        self, key: ShareKey, seen: ClaimResize | None, record: Record | None, presence: Presence
    ) -> Outcome:
        """Do what can be done now.

        Args:
            key: the device.
            seen: its object; None where there is none.
            record: the claim.
            presence: how it is there.

        Raises:
            JournalError, LockTimeoutError: not everything was done.
        """
        kept = [one for one in await self.journal.kept_of(key.uid) if isinstance(one, Settings) and one.key == key]
        row = kept[0] if kept else None
        if presence is Presence.UNCLEAR:
            return Outcome(_status(seen, key, presence, _Obstacle("NotPrepared", "the claim is being prepared")))
        if presence is not Presence.HERE or record is None:
            if row is not None:
                await self.journal.drop_resize(key)
            return Outcome(_status(seen, key, presence, None))
        present = row or _first(key, record)
        wanted = _wanted(present, seen, record)
        if isinstance(wanted, _Obstacle):
            return Outcome(_status(seen, key, presence, wanted))
        if (wanted.time_slice, wanted.mps) == (present.time_slice, present.mps) and (row is None or row.applied):
            return Outcome(_status(seen, key, presence, None, _applies_to(record, present)))
        obstacle = await self._change(present, wanted, record)
        waiting = obstacle is not None
        return Outcome(_status(seen, key, presence, obstacle, _applies_to(record, wanted)), waiting)

    async def _change(self, before: Settings, wanted: Settings, record: Record) -> _Obstacle | None:
        until = asyncio.get_running_loop().time() + _LOCK_S
        async with self.gpu_locks.hold(record.lock_keys, str(record.ref), until):
            try:
                planned_slice = any(isinstance(step, SetTimeSlice) for step in record.steps) and before.former is None
                device = settings.device_of(record.steps, wanted)
                assert device is not None, "the claim has it"
                if wanted.time_slice is not None and not planned_slice and before.former is None:
                    former = await self.machine.time_slice(device.gpu) or TimeSliceInterval.DEFAULT
                    wanted = replace(wanted, former=former)
                await self.journal.keep_resize(wanted)
                changed = await self.journal.load(wanted.uid)
                assert changed is not None, "the claim's lock is held"
                if wanted.time_slice is None and before.former is not None:
                    await self.machine.set_time_slice(device.gpu, before.former)
                return await self._set(wanted, changed)
            except (VendorError, MpsError, SpecStoreError) as error:
                return _Obstacle("SettingsNotMade", str(error))

    async def _set(self, wanted: Settings, record: Record) -> _Obstacle | None:
        step = settings.on_mps(record.steps, wanted.uid)
        if step is not None:
            try:
                await self.machine.resize_share(step.gpu, step.share, step.placement)
            except MpsError as error:
                if error.kind is not MpsErrorKind.BUSY:
                    raise
                pids = await self.machine.share_clients(step.gpu, step.share.name, step.placement)
                processes = tuple(HeldProcess(pid, self.machine.command(pid)) for pid in pids[:10])
                return _Obstacle(WAITING, str(error), processes)
        for one in record.steps:
            if isinstance(one, SetTimeSlice):
                await one.apply(self.machine)
            elif isinstance(one, WriteCdiSpec) and not await self.machine.spec_intact(one):
                await self.machine.write_spec(one)
        if wanted.as_planned:
            await self.journal.drop_resize(wanted.key)
        else:
            accepted = None if step is None else step.share.limits
            await self.journal.keep_resize(replace(wanted, accepted=accepted, applied=True))
        return None


def _first(key: ShareKey, record: Record) -> Settings:
    step = settings.on_mps(record.steps, key.uid)
    planned = None if step is None else step.share.limits
    return Settings(key.uid, key.device, record.ref.namespace, record.ref.name, planned=planned)


def _wanted(present: Settings, seen: ClaimResize | None, record: Record) -> Settings | _Obstacle:
    time_slice, mps = (None, None) if seen is None else (seen.status.time_slice, seen.status.mps)
    if time_slice is not None and present.planned is not None:
        return _Obstacle(
            "SharedByMps", "the claim shares the device by MPS, where processes take no turns: write spec.mps"
        )
    if time_slice is not None and any(share.counted is not None for share in record.shares):
        return _Obstacle("UsedByOthers", "other claims have the GPU, too: its time slice is theirs as well")
    if mps is not None and present.planned is None:
        return _Obstacle(
            "NotOnMps",
            "the claim does not share the device by MPS, and its containers would have to be started anew for that: "
            "write sharing.strategy MPS into its config, and make the claim anew",
        )
    try:
        limits = None if mps is None or present.planned is None else settings.wanted_limits(present.planned, mps)
    except InvalidConfigError as error:
        return _Obstacle("InvalidSettings", str(error))
    return replace(present, time_slice=time_slice, mps=limits, applied=False)


def _applies_to(record: Record, kept: Settings) -> dict[str, AppliesTo]:
    step = settings.on_mps(record.steps, kept.uid)
    if step is not None:
        late = step.share.protocol is MpsProtocol.CLASSIC
        return {"mps": AppliesTo.NEW_PROCESSES if late else AppliesTo.RUNNING_PROCESSES}
    return {} if kept.time_slice is None else {"timeSlice": AppliesTo.RUNNING_PROCESSES}


def _status(
    seen: ClaimResize | None,
    key: ShareKey,
    presence: Presence,
    obstacle: _Obstacle | None,
    applies_to: dict[str, AppliesTo] | None = None,
) -> NodeStatus | None:
    if seen is None:
        return None
    why = obstacle or _Obstacle("", "")
    return NodeStatus(
        observed_generation=seen.status.observed_generation,
        claim_uid=key.uid,
        permit=seen.status.permit,
        permitted=seen.status.permitted,
        applies_to=applies_to or {},
        waiting_for=list(why.processes),
        prepared=presence is not Presence.GONE,
        reason=why.reason,
        message=why.message[:1024],
    )
