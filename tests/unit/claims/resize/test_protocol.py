"""Whatever happens between any two steps, nothing is promised twice; in the end everything is as it was allocated."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dra_gpu.inventory.amounts import NOTHING
from tests.unit.claims.resize.protocol import HARDWARE, Gpu, units

AMOUNTS = st.builds(units, st.integers(1, 100), st.integers(1, 100))
SMALL = st.builds(units, st.integers(1, 30), st.integers(1, 30))
UNTIL_QUIET, MOST_MOVES = 60, 40


class AnyHistory(RuleBasedStateMachine):
    """One resize among others."""

    @initialize(allocated=AMOUNTS)
    def begins(self, allocated):
        self.gpu = Gpu(allocated, allocated)
        self.wanted = allocated

    @rule(wanted=AMOUNTS)
    def the_user_wants(self, wanted):
        self.wanted = wanted

    @rule(steps=st.integers(1, 6))
    def the_node_moves(self, steps):
        for _ in range(steps):
            self.gpu.node_moves()
            self.gpu.check()

    @rule(step=st.integers(1, 3))
    def the_node_reads(self, step):
        self.gpu.node_reads(step)

    @rule()
    def the_node_looks_again(self):
        self.gpu.looks_again()

    @rule(times=st.integers(1, 4))
    def the_controller_moves(self, times):
        for _ in range(times):
            self.gpu.controller_moves(self.wanted)
            self.gpu.check()

    @rule()
    def the_controller_asks_for_more(self):
        self.gpu.asks_the_scheduler()

    @rule()
    def the_slice_is_written(self):
        self.gpu.publishes()

    @rule()
    def the_node_hears_of_it(self):
        self.gpu.hears()

    @rule()
    def the_scheduler_sees_the_slice(self):
        self.gpu.scheduler_sees()

    @rule(asked=SMALL)
    def another_claim_comes(self, asked):
        self.gpu.another_comes(asked)

    @rule()
    def another_claim_is_prepared(self):
        self.gpu.another_is_prepared()

    @rule()
    def the_other_claims_leave(self):
        self.gpu.the_others_leave()

    @rule(attached=st.booleans())
    def a_program_attaches_or_leaves(self, attached):
        self.gpu.attached = attached and self.gpu.prepared

    @rule(part=st.integers(0, 4))
    def the_program_uses_memory(self, part):
        gpu = self.gpu
        wants = gpu.physical.memory * part // 4 if gpu.prepared else 0
        gpu.used = units(0, 0) if wants == 0 else type(gpu.used)(memory=wants)

    @rule()
    def the_node_plugin_dies(self):
        self.gpu.dies()

    @rule()
    def the_journal_is_lost(self):
        self.gpu.loses_its_journal()

    @rule()
    def the_claim_is_unprepared(self):
        self.gpu.unprepares()

    @rule()
    def the_claim_is_prepared(self):
        self.gpu.prepares()

    @invariant()
    def nothing_is_promised_twice(self):
        if hasattr(self, "gpu"):
            self.gpu.check()

    def teardown(self):
        if not hasattr(self, "gpu"):
            return
        gpu = self.gpu
        gpu.the_others_leave()
        gpu.attached, gpu.used = False, NOTHING
        if gpu.adopted:
            gpu.prepares()
        for _ in range(UNTIL_QUIET):
            gpu.node_reads(len(gpu.versions))
            gpu.looks_again()
            moves = 0
            while gpu.node_moves() and moves < MOST_MOVES:
                moves += 1
                gpu.node_reads(len(gpu.versions))
            assert moves < MOST_MOVES, gpu
            moved = [gpu.controller_moves(gpu.allocated), gpu.asks_the_scheduler()]
            gpu.publishes()
            gpu.hears()
            gpu.scheduler_sees()
            gpu.check()
            if not moves and not any(moved):
                break
        else:
            raise AssertionError(f"it never comes to rest: {gpu}")
        assert not gpu.growths, gpu
        assert not gpu.entry
        assert gpu.published == HARDWARE
        assert gpu.row is None or gpu.row.limit == gpu.allocated or not gpu.prepared, gpu


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
