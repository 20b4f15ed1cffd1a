"""What the journal keeps about a claim, and when two claims exclude each other. Pure.

A record is written once, with its intent; later only its state and note change. So fields that a newer release put
into it survive this release, whatever it does with the record.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from dra_gpu.claims import shares as share_codec
from dra_gpu.claims import steps as step_codec
from dra_gpu.claims.outcome import ClaimRef, PreparedDevice
from dra_gpu.claims.partitions import PartitionHolder
from dra_gpu.claims.resize.overlay import Overlay
from dra_gpu.claims.resize.state import Kept
from dra_gpu.claims.shares import HeldShare, MemoryCgroup
from dra_gpu.claims.steps import CreateMigInstance, LimitMemory, SetMigMode, Step, UnknownStep
from dra_gpu.claims.steps.form import Place


class State(enum.Enum):
    """How far a claim has come. All but PREPARED say that effects may be partly there."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"
    QUARANTINED = "quarantined"

    @property
    def in_between(self) -> bool:
        """Effects may be half made or half undone: somebody is at work on the claim, or was when it died."""
        return self in (State.PREPARING, State.UNPREPARING)


class Access(enum.Enum):
    """What holding a device means for other claims on the same GPU."""

    EXCLUSIVE = "exclusive"  # nobody else may hold anything of that GPU
    SHARED = "shared"  # others may hold their own parts of it
    PARTITION = "partition"  # nobody else may hold anything of those memory units
    PARTITION_SHARE = "partition-share"  # others may hold their own parts of that partition
    OBSERVER = "observer"  # sees the GPU, does not use it; admin access


@dataclass(frozen=True, slots=True)
class Hold:
    """A device that a claim holds.

    Attributes:
        device: name of the device in the pool.
        gpu: UUID of the GPU behind it.
        access: what it means for others.
        share_id: the share of a shareable device; empty for a device that is had whole.
        units: memory units of a partition as a bit mask; 0 where the GPU is used as one.
    """

    device: str
    gpu: str
    access: Access
    share_id: str = ""
    units: int = 0

    def is_of(self, place: Place) -> bool:
        """Tell whether it is a hold of that GPU or partition, or of a part of it."""
        gpu, units = place
        return self.gpu == gpu and (not units or self.units == units)

    def excludes(self, other: "Hold") -> bool:
        """Tell whether both cannot be held at once by different claims."""
        if self.gpu != other.gpu or Access.OBSERVER in (self.access, other.access):
            return False
        if Access.EXCLUSIVE in (self.access, other.access) or bool(self.units) is not bool(other.units):
            return True
        if self.units and not self.units & other.units:
            return False
        if Access.PARTITION in (self.access, other.access) or self.units != other.units:
            return True
        # Shares of one device go together, those of two views of it do not.
        return self.device != other.device or self.share_id == other.share_id


@dataclass(frozen=True, slots=True)
class Blocker:
    """A claim that holds something which another claim wants.

    Attributes:
        ref: the holder.
        state: how far it has come.
        device: what it holds.
        note: why it was quarantined.
        shortage: what of a shared GPU is not free; empty where the device as a whole is held.
    """

    ref: ClaimRef
    state: State
    device: str
    note: str
    shortage: str = ""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """The name a slot was given at first sight in this boot.

    Attributes:
        slot: PCI address, or the UUID on a platform without PCI (`inventory.naming.slot`).
        name: the GPU's name, `gpu-<n>`.
        uuid: the GPU that was seen there then.
    """

    slot: str
    name: str
    uuid: str


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a record that is JSON. Unknown fields are ignored: a newer release may have written it.

    Attributes:
        writer: release that wrote it.
        devices: the answer to the kubelet.
        steps: undecoded steps in the order of their application.
        lock_keys: GPU locks under which the steps are applied and undone, in order.
        adopted: found on the node without a record; the claim's own configs are not known yet.
        shares: undecoded `HeldShare`s.
    """

    writer: str = ""
    devices: tuple[PreparedDevice, ...] = ()
    steps: tuple[msgspec.Raw, ...] = ()
    lock_keys: tuple[str, ...] = ()
    adopted: bool = False
    shares: tuple[msgspec.Raw, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A claim in the journal.

    Attributes:
        ref: the claim; namespace and name may be empty for an adopted one.
        boot_id: the boot in which its effects were made; they died with it.
        state: how far it has come.
        devices: the answer to the kubelet.
        steps: decoded steps; those of an unreadable record are missing.
        holds: what it holds.
        shares: what of it are parts of GPUs, as much as they have by now.
        planned: the same as they were planned.
        resizes: what became of them since, and of settings of what it has whole.
        cgroups: where the memory of its shares is limited; grows as pods join.
        lock_keys: see `Payload`.
        adopted: see `Payload`.
        writer: release that wrote it.
        fault: why this release cannot work with the record; empty when it can.
        undoable: the fault leaves nothing behind that only another release could undo.
        note: why it was quarantined.
        seq: grows with every record written; tells a record from a later one of the same claim. 0 before writing.
    """

    ref: ClaimRef
    boot_id: str
    state: State
    devices: tuple[PreparedDevice, ...] = ()
    steps: tuple[Step, ...] = ()
    holds: tuple[Hold, ...] = ()
    shares: tuple[HeldShare, ...] = ()
    planned: tuple[HeldShare, ...] = ()
    resizes: Sequence[Kept] = ()
    cgroups: tuple[MemoryCgroup, ...] = ()
    lock_keys: tuple[str, ...] = ()
    adopted: bool = False
    writer: str = ""
    fault: str = ""
    undoable: bool = True
    note: str = ""
    seq: int = 0

    @property
    def gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs behind its devices."""
        return frozenset(hold.gpu for hold in self.holds)

    @property
    def share_names(self) -> frozenset[str]:
        """Names of all shares on MPS that it may have; also when its steps cannot be read."""
        ids = (hold.share_id for hold in self.holds if hold.share_id)
        return frozenset({share_codec.claim_share_name(self.ref.uid), *map(share_codec.share_name, ids)})

    @property
    def partitions(self) -> tuple[PartitionHolder, ...]:
        """The partitions that it holds; what its steps cannot tell counts as somebody else's."""
        made = {(it.gpu, it.placement.units): it for it in self.steps if isinstance(it, CreateMigInstance)}
        former = {it.gpu: it.former for it in self.steps if isinstance(it, SetMigMode)}
        places = {(hold.gpu, hold.units) for hold in self.holds if hold.access in PARTITIONED}
        found = []
        for gpu, units in sorted(places):
            step = made.get((gpu, units))
            foreign, placement = (True, None) if step is None else (step.foreign, step.placement)
            found.append(PartitionHolder(self.ref.uid, gpu, units, placement, foreign, former.get(gpu)))
        return tuple(found)


PARTITIONED = (Access.PARTITION, Access.PARTITION_SHARE)


def joined_cgroups(record: Record, cgroups: Iterable[str]) -> tuple[MemoryCgroup, ...]:
    """Return the limits that a claim's memory needs in cgroups which have none of it yet."""
    limits: dict[str, int] = {}
    for step in record.steps:
        if isinstance(step, LimitMemory):
            limits[step.gpu] = Overlay(record.planned, record.resizes).enforced_memory(step.gpu)
    known = {(one.gpu, one.cgroup) for one in record.cgroups}
    return tuple(
        MemoryCgroup(gpu, cgroup, limit)
        for cgroup in cgroups
        for gpu, limit in limits.items()
        if limit and (gpu, cgroup) not in known
    )


def encode_payload(record: Record, writer: str) -> bytes:
    """Return the JSON of a new record."""
    return msgspec.json.encode(
        Payload(
            writer=writer,
            devices=record.devices,
            steps=tuple(msgspec.Raw(step_codec.encode(step)) for step in record.steps),
            lock_keys=record.lock_keys,
            adopted=record.adopted,
            shares=tuple(msgspec.Raw(share_codec.encode(share)) for share in record.planned or record.shares),
        )
    )


@dataclass(frozen=True, slots=True)
class Content:
    """A decoded payload, and what could not be decoded of it."""

    payload: Payload
    steps: tuple[Step, ...]
    fault: str = ""
    undoable: bool = True

    @property
    def shares(self) -> tuple[HeldShare, ...]:
        """The shares as far as this release understands them; what they take of a GPU stands in columns, too."""
        decoded = (share_codec.decode(bytes(raw)) for raw in self.payload.shares)
        return tuple(share for share in decoded if share is not None)


def decode_payload(raw: bytes) -> Content:
    """Read a payload as far as this release understands it. Never raises: a bad record costs itself alone."""
    try:
        payload = msgspec.json.decode(raw, type=Payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Content(Payload(), (), f"its journal record cannot be read ({error})")
    known: list[Step] = []
    for raw_step in payload.steps:
        step = step_codec.decode(bytes(raw_step))
        if isinstance(step, UnknownStep):
            writer = f", written by release {payload.writer[:40]}" if payload.writer else ""
            fault = f"its journal record{writer} has the step {step.kind!r}, which this release does not know"
            return Content(payload, tuple(known), f"{fault}: {step.reason}", undoable=False)
        known.append(step)
    return Content(payload, tuple(known))
