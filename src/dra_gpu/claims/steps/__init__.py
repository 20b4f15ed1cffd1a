"""The effects of a claim on this node as typed values that can be written down before they happen.

Each step can be applied, undone and verified; each of the three may be repeated at any time, also after a crash in the
middle of it. Steps reach the node through the `Machine` alone. A new kind of step (a passthrough binding) is a class in
a module of this package and a member of `Step`.
"""

from collections.abc import Iterable

import msgspec

from dra_gpu.claims.steps.cdi import CLAIM_VARIABLE, FOREIGN_VARIABLE, CdiDevice, WriteCdiSpec, cdi_kind
from dra_gpu.claims.steps.machine import Machine
from dra_gpu.claims.steps.mig import CreateMigInstance, SetMigMode
from dra_gpu.claims.steps.shares import LimitMemory, ShareOnMps
from dra_gpu.claims.steps.time_slice import SetTimeSlice
from dra_gpu.inventory.model import MigPlacement

__all__ = [
    "CLAIM_VARIABLE",
    "FOREIGN_VARIABLE",
    "CdiDevice",
    "CreateMigInstance",
    "LimitMemory",
    "Machine",
    "SetMigMode",
    "SetTimeSlice",
    "ShareOnMps",
    "Step",
    "UnknownStep",
    "WriteCdiSpec",
    "cdi_kind",
    "decode",
    "encode",
    "with_owners",
]

Step = SetTimeSlice | SetMigMode | CreateMigInstance | ShareOnMps | LimitMemory | WriteCdiSpec


class UnknownStep(msgspec.Struct, frozen=True):
    """A step that this release cannot carry out: of a newer release, or damaged."""

    kind: str
    reason: str


class _Kind(msgspec.Struct, frozen=True):
    step: str = ""


_decoder: msgspec.json.Decoder[Step] = msgspec.json.Decoder(Step)


def encode(step: Step) -> bytes:
    """Return the JSON of a step."""
    return msgspec.json.encode(step)


def decode(raw: bytes) -> Step | UnknownStep:
    """Read a step as far as this release knows its kind; unknown fields are ignored."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            kind = msgspec.json.decode(raw, type=_Kind).step
        except (msgspec.DecodeError, UnicodeDecodeError):
            kind = ""
        return UnknownStep(kind[:40], str(error))


def with_owners(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return observed steps whose CDI file tells, too, which partitions are an administrator's."""
    steps = tuple(steps)
    foreign = {(step.gpu, step.placement) for step in steps if isinstance(step, CreateMigInstance) and step.foreign}
    return tuple(_told(step, foreign) if isinstance(step, WriteCdiSpec) else step for step in steps)


def _told(step: WriteCdiSpec, foreign: set[tuple[str, MigPlacement]]) -> WriteCdiSpec:
    devices = tuple(msgspec.structs.replace(one, foreign=(one.gpu, one.placement) in foreign) for one in step.devices)
    return msgspec.structs.replace(step, devices=devices)
