"""Any history of calls, crashes, reboots and vanishing claims: nothing leaks, nothing is held twice."""

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dra_gpu.claims.outcome import ClaimRef, Prepared
from dra_gpu.claims.record import Access, State
from tests.component.claims.dying_node import HARDWARE, DiskMps, DiskVendor, Fate, Mortal
from tests.unit.claims.world import EVERY_VIEW, LONG, PATIENCE, FakeApi, Node, config, inventory_of, ref, result, share
from tests.unit.inventory.boards import H100, partitionable
from tests.unit.inventory.builders import gpu

CLAIMS = {
    "u1": ("gpu-0",),
    "u2": ("gpu-0", "gpu-1"),
    "u3": ("gpu-1",),
    "u4": ("gpu-2",),
    "s1": ("gpu-2-shared",),
    "s2": ("gpu-2-shared",),
    "s3": ("gpu-2-shared",),
    "mps": ("gpu-1",),
    "watch": ("gpu-0-monitor",),
    "m1": ("gpu-3-mig-1g10gb-19-2",),
    "m2": ("gpu-3-mig-1g10gb-19-3", "gpu-3-mig-3g40gb-9-4"),
    "m3": ("gpu-3-mig-3g40gb-9-0",),
    "m4": ("gpu-3",),
    "p1": ("gpu-3-mig-1g10gb-19-2-shared",),
    "p2": ("gpu-3-mig-1g10gb-19-2-shared",),
}
PERCENT = {"s1": 60, "s2": 30, "s3": 30, "p1": 60, "p2": 50}
GPUS = [*(gpu(number) for number in range(3)), partitionable(H100, 3)]
MPS = config(sharing={"strategy": "MPS"})
UIDS = st.sampled_from(sorted(CLAIMS))
BOUNDARIES = st.integers(0, 25)


NUMBERS = {uid: number for number, uid in enumerate(sorted(PERCENT), 1)}


def units(device: str) -> set[tuple[str, int]]:
    """Return what a device takes, as memory units of its GPU; a device that is only watched takes nothing."""
    if "monitor" in device:
        return set()
    size = 8
    start = 0
    if "-mig-" in device:
        size, start = 4 if "3g40gb" in device else 1, int(device.removesuffix("-shared")[-1])
    return {(device[:5], unit) for unit in range(start, start + size)}


class Death(BaseException):
    """The process ends here."""


class Unwinding(Fate):
    """Ends the work and not the process: the history goes on in this one."""

    def strike(self) -> None:
        raise Death


class HistoryNode(Node):
    def __init__(self, directory: Path, api: FakeApi, boot: str) -> None:
        super().__init__(directory, boot=boot)
        self.inventory = inventory_of(GPUS, options=EVERY_VIEW)
        self.vendor = DiskVendor(directory / "hardware.json")
        self.vendor.cgroups = {uid: f"/kubepods/{uid}" for uid in CLAIMS}
        self.mps = DiskMps(directory / "mps.json")
        self.api = api
        self.fate = Unwinding()

    def wrapped_journal(self):
        return Mortal(self.journal, self.fate)

    def wrapped_machine(self):
        return Mortal(self.machine, self.fate)


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp())
        self.api = FakeApi()
        self.boots = 1
        self.promised: set[str] = set()
        for uid in CLAIMS:
            self.allocate(uid)
        self.start()

    def start(self) -> None:
        self.node = HistoryNode(self.directory, self.api, f"boot-{self.boots}")
        self.context = self.node.running()
        self.runner.run(self.context.__aenter__())
        self.runner.run(self.node.look())

    def stop(self) -> None:
        self.node.fate.left = None
        self.runner.run(self.context.__aexit__(None, None, None))

    def teardown(self) -> None:
        for uid in CLAIMS:
            assert self.runner.run(self.node.unprepare(self.ref(uid))) is None
        self.runner.run(self.node.reconciler.recover())
        assert self.runner.run(self.node.journal.records()) == []
        assert self.node.specs.claim_uids() == frozenset()
        assert self.node.vendor.settings() == {}
        assert self.node.vendor.instances == {}
        assert not any(self.node.vendor.mig_modes.values())
        assert self.node.mps.held == {}
        self.stop()
        self.runner.close()
        shutil.rmtree(self.directory)

    def ref(self, uid: str) -> ClaimRef:
        return ref(uid, f"claim-{uid}")

    def allocate(self, uid: str) -> None:
        if uid in PERCENT:
            [device] = CLAIMS[uid]
            allocated = share(device, NUMBERS[uid], percent=PERCENT[uid], memory="2Gi")
            self.api.add(self.ref(uid), allocated, pods=[uid])
            return
        devices = [result(name, f"r{n}", admin="monitor" in name) for n, name in enumerate(CLAIMS[uid])]
        self.api.add(self.ref(uid), *devices, configs=[MPS if uid == "mps" else config(**LONG)])

    def blocked(self, uid: str) -> bool:
        """Tell whether what was promised to others leaves too little for a claim."""
        others = self.promised - {uid}
        if uid in PERCENT:
            beside = [other for other in others if other in PERCENT and CLAIMS[other] == CLAIMS[uid]]
            others -= set(beside)
            if PERCENT[uid] + sum(PERCENT[other] for other in beside) > 100:
                return True
        return any(units(mine) & units(theirs) for mine in CLAIMS[uid] for other in others for theirs in CLAIMS[other])

    @rule(uid=UIDS)
    def the_scheduler_allocates(self, uid):
        self.allocate(uid)

    @rule(uid=UIDS)
    def the_claim_vanishes(self, uid):
        self.api.claims.pop(("team-a", f"claim-{uid}"), None)

    @rule(uid=UIDS)
    def the_kubelet_prepares(self, uid):
        blocked = self.blocked(uid)
        answer = self.runner.run(self.node.prepare(self.ref(uid)))
        if isinstance(answer, Prepared):
            assert [device.device for device in answer.devices] == list(CLAIMS[uid])
            self.promised.add(uid)
        else:
            known = ("team-a", f"claim-{uid}") in self.api.claims
            refused = "still held" in answer.message or "ShareNotFree" in answer.message
            assert refused if known else "does not exist" in answer.message
            assert not known or blocked

    @rule(uid=UIDS)
    def the_kubelet_unprepares(self, uid):
        assert self.runner.run(self.node.unprepare(self.ref(uid))) is None
        self.promised.discard(uid)
        assert self.runner.run(self.node.journal.load(uid)) is None

    @rule()
    def the_plugin_reconciles(self):
        report = self.runner.run(self.node.reconciler.reconcile())
        assert report.failures == []
        self.promised = {uid for uid in self.promised if ("team-a", f"claim-{uid}") in self.api.claims}

    @rule(uid=UIDS, boundary=BOUNDARIES, call=st.sampled_from(["prepare", "unprepare", "recover"]))
    def the_plugin_is_killed(self, uid, boundary, call):
        self.node.fate.left = boundary
        work = {
            "prepare": lambda: self.node.preparation.prepare(self.ref(uid), float("inf")),
            "unprepare": lambda: self.node.preparation.unprepare(self.ref(uid), float("inf")),
            "recover": self.node.reconciler.recover,
        }[call]

        async def until_death() -> None:
            try:
                await asyncio.wait_for(work(), PATIENCE)
            except Exception:  # noqa: BLE001 - a refusal is as good as any end here
                return

        with contextlib.suppress(Death):
            self.runner.run(until_death())
        self.stop()
        self.start()
        self.settle_promises()

    @rule()
    def the_plugin_restarts(self):
        self.stop()
        self.start()
        assert self.runner.run(self.node.reconciler.recover()).failures == []
        self.promised = {uid for uid in self.promised if ("team-a", f"claim-{uid}") in self.api.claims}

    @rule()
    def the_gpus_are_looked_at(self):
        before = [device.wire for device in self.node.inventory.devices.values()]
        self.runner.run(self.node.look())
        assert [device.wire for device in self.node.inventory.devices.values()] == before

    @rule()
    def the_node_reboots(self):
        self.stop()
        for name in HARDWARE:
            (self.directory / name).unlink(missing_ok=True)
        shutil.rmtree(self.directory / "cdi", ignore_errors=True)
        self.boots += 1
        self.start()
        self.runner.run(self.node.reconciler.recover())
        self.settle_promises()

    def settle_promises(self) -> None:
        """After a crash, promised is what the journal says is prepared; the rules check that it is true."""
        records = self.runner.run(self.node.journal.records())
        self.promised = {found.ref.uid for found in records if found.state is State.PREPARED}

    @invariant()
    def no_gpu_is_held_twice(self):
        records = self.runner.run(self.node.journal.records())
        holds = Counter(
            hold.gpu
            for found in records
            if found.boot_id == self.node.boot
            for hold in found.holds
            if hold.access is Access.EXCLUSIVE
        )
        assert all(count == 1 for count in holds.values()), holds
        held = set(holds)
        settings = set(self.node.vendor.settings())
        assert {key for key in settings if "/" not in key} <= held
        assert {key.partition("/kubepods/")[2] for key in settings if "/" in key} <= {it.ref.uid for it in records}
        assert self.node.specs.claim_uids() <= {found.ref.uid for found in records}

    @invariant()
    def what_mps_has_belongs_to_a_record_and_fits_the_gpu(self):
        records = self.runner.run(self.node.journal.records())
        owned = frozenset(name for found in records for name in found.share_names)
        assert self.node.mps.names() <= owned
        sums = Counter()
        for (device, _), limits in self.node.mps.held.items():
            sums[device] += limits.compute_percent or 0
        assert all(percent <= 100 for percent in sums.values())

    @invariant()
    def partitions_belong_to_records_and_do_not_overlap_and_without_them_no_gpu_is_in_mig_mode(self):
        records = self.runner.run(self.node.journal.records())
        living = [found for found in records if found.boot_id == self.node.boot]
        owned = {(part.gpu, part.placement) for found in living for part in found.partitions}
        instances = set(self.node.vendor.instances)
        assert instances <= owned
        taken = Counter((gpu, unit) for gpu, place in instances for unit in range(8) if place.units >> unit & 1)
        assert all(count == 1 for count in taken.values())
        switched = {gpu for gpu, enabled in self.node.vendor.mig_modes.items() if enabled}
        assert switched <= {part.gpu for found in living for part in found.partitions}
        for found in living:
            for part in found.partitions if found.state is State.PREPARED else ():
                assert not part.foreign
                assert (part.gpu, part.placement) in instances

    @invariant()
    @precondition(lambda self: self.promised)
    def what_was_promised_is_there(self):
        records = {found.ref.uid: found for found in self.runner.run(self.node.journal.records())}
        for uid in self.promised:
            assert records[uid].state is State.PREPARED


LENGTHS = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


def test_any_history_ends_well():
    run_state_machine_as_test(History, settings=LENGTHS)
