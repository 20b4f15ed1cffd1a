"""A GPU of 100 units whose claims are resized: the shipped decisions of the node, and a model of what is around them.

The model is of the scheduler (it decides by slices that it may have seen long ago, and by what it has allocated), of
the controller (it decides by the newest object), of the API server, and of a workload that frees what it has when it
likes. Whoever decides does one step at a time, so that anything can come between any two of them.
"""

from dataclasses import dataclass, field

from dra_gpu.claims.resize import wish as wishes
from dra_gpu.claims.resize.decide import Drop, Enforce, Enforced, Facts, Keep, Presence, Raise, Rest, decide, surplus
from dra_gpu.claims.resize.state import Resize, ShareKey
from dra_gpu.claims.resize.wish import Told, Wish
from dra_gpu.claims.shares import MEBI
from dra_gpu.inventory.amounts import NOTHING, Amounts

HARDWARE = Amounts(100, 100 * MEBI)
LEAST = Amounts(1, MEBI)
KEY = ShareKey("claim", "gpu-0-shared", "share")


def units(percent: int, memory: int) -> Amounts:
    return Amounts(percent, memory * MEBI)


@dataclass
class Growth:
    amount: Amounts
    counted: bool = False
    releasing: bool = False


@dataclass
class Gpu:
    """One claim that is resized, others that come and go, and all who have a say."""

    allocated: Amounts
    wanted: Amounts
    # the API server
    versions: list[Wish] = field(default_factory=list)
    entry: bool = False
    is_allocated: bool = True
    published: Amounts = HARDWARE
    # the scheduler
    seen_published: Amounts = HARDWARE
    growths: list[Growth] = field(default_factory=list)
    others: list[Amounts] = field(default_factory=list)
    prepared_others: list[Amounts] = field(default_factory=list)
    # the node: on disk, in memory, in the machine
    row: Resize | None = None
    read: int = 0
    prepared: bool = True
    at_server: Amounts | None = None
    enforced: Enforced | None = None
    refused: Amounts | None = None
    physical: Amounts = NOTHING
    used: Amounts = NOTHING
    attached: bool = False
    told_prepared: bool = True
    held: Amounts | None = None
    adopted: bool = False

    def __post_init__(self) -> None:
        self.physical = self.held = self.allocated
        self.versions.append(Wish(KEY, "ns", "c", "object", self.allocated, self.allocated, 1, self.wanted))

    # The server's object

    @property
    def newest(self) -> Wish:
        return self.versions[-1]

    def write(self, **changes) -> None:
        new = replaced(self.newest, **changes)
        if new != self.newest:
            self.versions.append(new)

    # The node

    @property
    def facts(self) -> Facts:
        presence = Presence.GONE
        if self.prepared:
            presence = Presence.UNCLEAR if self.adopted else Presence.HERE
        return Facts(presence, self.at_server, self.enforced, self.refused)

    def node_moves(self) -> bool:
        """Do the node's next step; tells whether there was one."""
        seen = self.versions[self.read]
        if self.row is None:
            self.row = wishes.begun(seen, self.held)
            return True
        move = decide(self.row, seen, self.facts)
        match move:
            case Keep(resize):
                self._keep(resize)
            case Raise(resize):
                if (resize.limit + total(self.prepared_others)).within(HARDWARE):
                    self._keep(resize)
                else:
                    self.refused = resize.limit
            case Enforce():
                self._enforce(self.row)
            case Drop() | Rest():
                return self._say()
        return True

    def _keep(self, resize: Resize) -> None:
        assert self.row is not None
        if resize.goal != self.row.goal:
            self.enforced = None
        if resize.offered != self.row.offered:
            self.at_server = None
        self.row = resize

    def _enforce(self, row: Resize) -> None:
        """Memory by cgroup, compute by a namespace that cannot change while somebody is attached."""
        percent = self.physical.compute_percent if self.attached else row.goal.compute_percent
        self.physical = Amounts(percent, row.goal.memory)
        free = self.used.memory <= row.goal.memory
        held = Amounts(
            row.limit.compute_percent if self.attached and row.goal != row.limit else row.goal.compute_percent,
            row.goal.memory if free else row.limit.memory,
        )
        self.enforced = Enforced(held, complete=not self.attached)

    def _say(self) -> bool:
        """Write the node's part of the status, with what was read before it."""
        assert self.row is not None
        seen = self.versions[self.read]
        told = Told(
            self.row.limit,
            surplus(self.row, seen, self.facts.presence),
            self.row.round,
            self.row.released_round,
            self.row.permit,
            self.row.permitted,
        )
        if told == self.newest.told and self.told_prepared == self.prepared:
            return False
        self.told_prepared = self.prepared
        self.write(told=told)
        return True

    def node_reads(self, step: int = 1) -> None:
        self.read = min(self.read + step, len(self.versions) - 1)
        self.refused = None

    def looks_again(self) -> None:
        """Come by once more: what was in the way may have gone."""
        self.enforced = self.refused = None

    def publishes(self) -> None:
        """Write what the journal offers."""
        if self.row is not None:
            self.published = HARDWARE + self.row.offered

    def hears(self) -> None:
        """Learn that the server has what is offered."""
        if self.row is not None and self.published == HARDWARE + self.row.offered:
            self.at_server = self.row.offered

    def dies(self) -> None:
        """Kill -9, and start: everything in memory is gone, objects are listed anew."""
        self.at_server = self.enforced = self.refused = None
        self.read = len(self.versions) - 1

    def loses_its_journal(self) -> None:
        self.dies()
        self.row = None
        self.held = self.allocated if self.prepared else None
        self.adopted = self.prepared
        self.published = HARDWARE

    def unprepares(self) -> None:
        self.prepared, self.attached, self.used, self.enforced = False, False, NOTHING, None
        self.held, self.adopted = None, False

    def prepares(self) -> None:
        """Let a pod have the claim, with as much of it as is in force; so is one that was adopted."""
        if not self.is_allocated or (self.prepared and not self.adopted):
            return
        if self.row is None and self.entry:
            self.row = wishes.begun(self.newest)
        limit = self.allocated if self.row is None else self.row.limit
        if not (limit + total(self.prepared_others)).within(HARDWARE):
            return
        goal = limit if self.row is None else self.row.goal
        if self.adopted and self.attached:
            goal = Amounts(self.physical.compute_percent, goal.memory)
        self.prepared, self.adopted, self.held = True, False, self.allocated
        self.enforced = None
        self.physical = goal

    # The controller

    @property
    def permitted(self) -> Amounts:
        return total([self.allocated, *(one.amount for one in self.growths if one.counted and not one.releasing)])

    def controller_moves(self, wanted: Amounts) -> bool:
        """Do the controller's next step; tells whether there was one."""
        seen, told = self.newest, self.newest.told
        owes = told.round != told.released_round
        if owes and not self.entry and self.is_allocated:
            self.entry = True
            return True
        if not owes and self.entry:
            self.entry = False
            self.write(reserved_round=0)
            return True
        leaving = [one for one in self.growths if one.releasing]
        if told.permit == seen.permit and leaving:
            self.growths.remove(leaving[0])
            return True
        before = self.permitted
        for one in self.growths:
            one.counted = True
        if told.permit == seen.permit:
            self._lets_go(wanted)
        changes = {"wanted": wanted, "permitted": self.permitted, "reserved_round": told.round if self.entry else 0}
        if self.permitted != before or self.permitted != seen.permitted:
            changes["permit"] = seen.permit + 1
        self.write(**changes)
        return self.newest != seen

    def _lets_go(self, wanted: Amounts) -> None:
        """Mark the growths that nothing needs any more."""
        told = self.newest.told
        enough = told.in_force is not None and wanted.within(told.in_force)
        left = told.give_back
        for one in self.growths:
            if one.releasing or not one.counted:
                continue
            if not self.told_prepared:
                one.releasing = True
            elif enough and one.amount.within(left):
                one.releasing, left = True, left - one.amount

    def asks_the_scheduler(self) -> bool:
        """Ask for what is missing, which the scheduler grants if it is free as far as it knows."""
        told = self.newest.told
        if told.permit != self.newest.permit or not self.told_prepared or any(not one.counted for one in self.growths):
            return False
        need = (self.newest.wanted - (self.permitted - told.give_back)).at_least(NOTHING)
        asked = need.at_least(LEAST)
        if not need or not self._fits(asked):
            return False
        self.growths.append(Growth(asked))
        return True

    # The scheduler

    @property
    def allocations(self) -> list[Amounts]:
        own = [self.allocated] if self.is_allocated else []
        return [*own, *(one.amount for one in self.growths), *self.others]

    def _fits(self, asked: Amounts) -> bool:
        return (total(self.allocations) + asked).within(self.seen_published)

    def scheduler_sees(self) -> None:
        self.seen_published = self.published

    def another_comes(self, asked: Amounts) -> None:
        if self._fits(asked):
            self.others.append(asked)

    def another_is_prepared(self) -> None:
        waiting = [one for number, one in enumerate(self.others) if number >= len(self.prepared_others)]
        limit = (self.row.limit if self.row is not None else self.allocated) if self.prepared else NOTHING
        if waiting and (limit + total(self.prepared_others) + waiting[0]).within(HARDWARE):
            self.prepared_others.append(waiting[0])

    def the_others_leave(self) -> None:
        self.others.clear()
        self.prepared_others.clear()

    def is_force_deleted(self) -> None:
        """Its pods are gone as far as Kubernetes knows: only an entry keeps it allocated."""
        if not self.entry and not any(self.growths):
            self.is_allocated = False

    # What must always hold

    @property
    def real(self) -> Amounts:
        """What the processes of the claim have or can take."""
        return self.physical.at_least(self.used) if self.prepared else NOTHING

    def check(self) -> None:
        own = self.allocated if self.is_allocated else NOTHING
        promised = total([own, *(one.amount for one in self.growths)])
        limit = NOTHING if self.row is None or not (self.prepared and self.is_allocated) else self.row.limit
        given = self.published - HARDWARE
        assert (limit + given).within(promised), f"L {limit} + B {given} > {promised}"
        if self.row is not None:
            assert self.row.offered.within(self.row.given_back)
            assert self.row.goal.within(self.row.limit)
            assert given.within(self.row.given_back), "published before the journal has it"
            if self.prepared:
                assert self.real.within(self.row.limit), f"processes have {self.real} of {self.row.limit}"
        assert (self.real + total(self.prepared_others)).within(HARDWARE), "the GPU is promised twice"


def total(amounts: list[Amounts]) -> Amounts:
    return sum(amounts, NOTHING)


def replaced(wish: Wish, **changes) -> Wish:
    return type(wish)(**{name: changes.get(name, getattr(wish, name)) for name in wish.__slots__})
