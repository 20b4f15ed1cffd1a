"""A node whose claims are resized, and the object of one of them as its controller would write it."""

from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from dra_gpu.api import resource_v1 as wire
from dra_gpu.api.claim_resize import ClaimResize, ClaimResizeMeta, ClaimResizeStatus, Target
from dra_gpu.claims.locks import ClaimLocks, GpuLocks
from dra_gpu.claims.outcome import ClaimRef
from dra_gpu.claims.preparation import Identity
from dra_gpu.claims.record import Record
from dra_gpu.claims.resize.resizing import Resizing, Visit
from dra_gpu.claims.resize.state import ShareKey
from dra_gpu.claims.shares import MEBI, share_name
from dra_gpu.inventory.amounts import NOTHING, Amounts
from tests.unit.claims.world import DRIVER, POOL, Node, share, share_id

GIB = 1024 * MEBI
DEVICE = "gpu-0-shared"


def amounts(percent: int, gib: int) -> Amounts:
    return Amounts(percent, gib * GIB, 1)


class Server:
    """What is published beyond the hardware: what is offered gets there when the test says so."""

    def __init__(self) -> None:
        self.offered: dict[ShareKey, Amounts] = {}
        self.published: dict[ShareKey, Amounts] = {}

    def offer(self, key: ShareKey, amounts: Amounts) -> None:
        self.offered[key] = amounts

    def at_server(self, key: ShareKey) -> Amounts | None:
        offered, there = self.offered.get(key, NOTHING), self.published.get(key, NOTHING)
        return offered if offered == there else None

    def publish(self) -> None:
        self.published = dict(self.offered)


class ResizedNode(Node):
    """A node with one H100-like GPU, and what resizes its shares."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, gpus=1)
        self.server = Server()
        self.resized: list[Record] = []

    @cached_property
    def resizing(self) -> Resizing:
        """What resizes its shares; one for each time that the node runs."""
        locks = self.directory / "state" / "locks"
        return Resizing(
            Identity(DRIVER, POOL),
            journal=self.journal,
            machine=self.machine,
            preparation=self.preparation,
            reader=self.api,
            claim_locks=ClaimLocks(locks),
            gpu_locks=GpuLocks(locks),
            offers=self.server,
            on_resized=self.resized.append,
        )

    @property
    def gpu(self) -> str:
        return next(iter(self.inventory.gpus))

    async def claim(self, number: int, percent: int, gib: int) -> ClaimRef:
        """Make a claim for a share, with one pod."""
        ref = ClaimRef("team", f"c{number}", f"claim-{number}")
        self.vendor.cgroups[f"pod-{number}"] = f"/kubepods/pod-{number}"
        self.api.add(ref, share(DEVICE, number, percent=percent, memory=f"{gib}Gi"), pods=(f"pod-{number}",))
        return ref

    def enter(self, ref: ClaimRef) -> None:
        """Enter the resize in the claim's `status.reservedFor`."""
        claim = self.api.claims[ref.namespace, ref.name]
        entry = wire.ResourceClaimConsumerReference("claimresizes", ref.name, "object", "resource.dra-gpu.dev")
        status = replace(claim.status, reserved_for=[*claim.status.reserved_for, entry])
        self.api.claims[ref.namespace, ref.name] = replace(claim, status=status)

    def mps_of(self, number: int) -> int | None:
        """The percentage that MPS lets the processes of a claim use."""
        assert self.mps is not None
        return self.mps.held[self.gpu, share_name(share_id(number))].compute_percent

    def memory_of(self, number: int) -> int | None:
        """The memory that the driver lets the pod of a claim use, in GiB."""
        limit = self.vendor.limits.get((self.gpu, f"/kubepods/pod-{number}"))
        return None if limit is None else limit // GIB

    def attach(self, number: int, *pids: int) -> None:
        assert self.mps is not None
        self.mps.attached[self.gpu, share_name(share_id(number))] = pids

    def use(self, number: int, gib: int, pid: int = 4711) -> None:
        self.vendor.users[self.gpu, f"/kubepods/pod-{number}"] = {pid: gib * GIB}


class Controller:
    """The object of one claim."""

    def __init__(
        self, node: ResizedNode, ref: ClaimRef, number: int, percent: int, gib: int, device: str = DEVICE
    ) -> None:
        self.node, self.ref = node, ref
        self.key = ShareKey(ref.uid, device, share_id(number))
        own = amounts(percent, gib).wire(zeros=True)
        target = Target(ref.uid, DRIVER, POOL, device, share_id(number))
        status = ClaimResizeStatus(
            node_name=POOL, target=target, allocated=own, permitted=own, wanted=own, permit=1, observed_generation=1
        )
        meta = ClaimResizeMeta(name=ref.name, namespace=ref.namespace, uid="object", generation=1)
        self.object: ClaimResize | None = ClaimResize(metadata=meta, status=status)

    @property
    def said(self):
        """What the node has said."""
        assert self.object is not None
        return self.object.status.node

    async def get(self, namespace: str, name: str) -> ClaimResize | None:
        """The object as the node reads it from the API server."""
        return self.object if (namespace, name) == (self.ref.namespace, self.ref.name) else None

    def write(self, **fields) -> None:
        assert self.object is not None
        self.object = replace(self.object, status=replace(self.object.status, **fields))

    def want(self, percent: int, gib: int) -> None:
        self.write(wanted=amounts(percent, gib).wire(zeros=True))

    def permit(self, percent: int, gib: int) -> None:
        assert self.object is not None
        permitted = amounts(percent, gib).wire(zeros=True)
        self.write(permitted=permitted, permit=self.object.status.permit + 1)

    def reserve(self) -> None:
        self.write(reserved_round=self.said.round)

    async def visit(self) -> Visit:
        """Let the node visit the share, and take what it says."""
        visit = await self.node.resizing.visit(self.key, self.object)
        if visit.status is not None:
            self.write(node=visit.status)
        return visit

    async def give_back(self, percent: int, gib: int) -> None:
        """Shrink to that, all the way."""
        self.want(percent, gib)
        await self.visit()
        self.reserve()
        await self.visit()
        self.node.server.publish()
        await self.visit()

    @property
    def published(self) -> Amounts:
        return self.node.server.published.get(self.key, NOTHING)


def told(amounts: Amounts) -> dict[str, str]:
    return amounts.wire(zeros=True)
