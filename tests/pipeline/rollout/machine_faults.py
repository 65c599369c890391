"""What fails by itself around the rollout's state machine: metrics, canary, router, slots, registry, labels, time."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from pipeline.rollout.record import Phase
from tests.pipeline.rollout.conftest import NAME
from tests.pipeline.rollout.faults import SPOILERS
from tests.pipeline.rollout.machine_world import KINDS, SHORT, UNITS, WitnessedRollout


class FailingWorld(WitnessedRollout):
    @rule(kind=st.sampled_from(["good", "good", "good", *SPOILERS]))
    def metrics_turn(self, kind):
        self.world.metrics.spoil = SPOILERS[kind]

    @rule(requests=st.sampled_from([40_000, 40_000, 10_000, 4_000, 200]))
    def traffic_turns(self, requests):
        self.world.metrics.requests = requests

    @rule(kind=st.sampled_from(["good", "good", "good", *KINDS]))
    def canary_turns(self, kind):
        self.world.metrics.canary = KINDS[kind]

    @rule(fault=st.sampled_from(["", "", "", "unreadable", "unwritable", "deaf", "lying", "late"]))
    def router_turns(self, fault):
        self.router.fault = fault
        if fault != "late":
            self.router.asked = None

    @rule(fault=st.sampled_from(["", "", "", "loading", "wrong", "raises", "few", "unsure"]))
    def slot_turns(self, fault):
        self.router.slot = fault

    @precondition(lambda self: self.world.metrics.users != UNITS["request"])
    @rule(unit=st.sampled_from(["user", "user", "not sticky"]))
    def users_change_arms(self, unit):
        self.world.metrics.users = UNITS[unit]

    @rule(cold=st.sampled_from([False, False, True]))
    def the_slot_fails_at_recent_prompts(self, cold):
        self.cold = cold

    @rule(down=st.booleans())
    def registry_turns(self, down):
        self.world.registry.down = down

    @rule(digest=st.sampled_from(["", "other", "third"]))
    def labels_turn(self, digest):
        """What decides a grade is changed: evidence of before is not to be added to."""
        self.world.metrics.label_digest = digest

    @precondition(lambda self: self.world.state.watch.tally)
    @rule()
    def the_tally_is_lost(self):
        self.store.path("rollout", NAME, "tallies", f"{self.world.state.watch.tally}.json").unlink(missing_ok=True)

    @precondition(lambda self: self.weight() > 0)
    @rule()
    def nobody_ticks_until_the_lease_is_over(self):
        """The champion serves alone then; the next tick finds that, and no such time is a dwell."""
        self.waits(4_000.0)
        covered, real = self.world.state.watch.covered_s, self.router.really
        over = real is not None and real.expires_at is not None and real.expires_at <= self.world.now
        self.tick()  # a clock that ran ahead may have granted more: then it is one look at the most
        allowed = 0.0 if over else SHORT.max_look_s
        if self.world.state.phase in (Phase.SHIFTING, Phase.OBSERVING):
            assert self.world.state.watch.covered_s <= covered + allowed, "what nobody watched is no dwell"
