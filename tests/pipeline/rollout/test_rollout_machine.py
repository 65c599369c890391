"""The rollout under crashes at every side effect, a second controller, repeated ticks and bad metrics.

The invariants are checked where traffic really moves: in the router, against what production's metrics really said.
"""

import shutil
import tempfile
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.rollout.controller import RolloutPorts, tick, wanted_split
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.fold import fold
from pipeline.rollout.propose import champion
from pipeline.rollout.record import TERMINAL, Phase, read_events
from pipeline.rollout.router import Split
from tests.pipeline.rollout.conftest import NAME, POLICY, FusedStore, World
from tests.pipeline.rollout.faults import SLOW_S, SPOILERS, Crash, WatchedRouter


class RolloutMachine(RuleBasedStateMachine):
    @initialize()
    def build(self):
        self.folder = tempfile.mkdtemp()
        self.store = FusedStore(self.folder)
        self.left, self.blow = 0, None
        self.store.fuse = self.fuse
        self.world = World(self.store)
        self.world.router = self.router = WatchedRouter(self.store, NAME, self.fuse, self.witness)
        self.bundles: dict[str, str] = {}
        self.proposals = 0
        self.registered = 0
        self.doomed: set[str] = set()
        self.in_force_since = 0.0
        self.checked = -1

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def fuse(self):
        """Every side effect passes here, before and after; the n-th passage calls `blow`."""
        self.left -= 1
        if self.left == 0 and self.blow is not None:
            blow, self.blow = self.blow, None
            blow()

    def project(self, state):
        self.fuse()
        self.world.registry(state)
        self.fuse()

    def ports(self):
        metrics = self.world.metrics
        return RolloutPorts(self.store, NAME, self.router, self.project, metrics, intact=lambda _: True)

    def tick(self, late_s=0.0):
        now = self.world.now - late_s
        tick(self.ports(), now)

    def witness(self, before: Split | None, after: Split):
        """Called with what the router really does, right after a change."""
        assert after.canary_weight + after.champion_weight == 100
        assert after.canary_weight in (0, *POLICY.weights)
        same = before is not None and before.rollout == after.rollout
        was = before.canary_weight if same else 0
        since = self.in_force_since
        if after.canary_weight != was:
            self.in_force_since = self.world.now
        if after.canary_weight <= was:
            return
        assert after.rollout not in self.doomed, "a weight rose after the rollback was decided"
        events = [e for e in read_events(self.store, NAME) if e.rollout == after.rollout]
        assert all(e.phase is not Phase.ROLLING_BACK for e in events)
        assert events[-1].phase is not Phase.HELD, "a held rollout rose by itself"
        stage = POLICY.weights.index(after.canary_weight)
        if stage == 0:
            return
        assert was == POLICY.weights[stage - 1], "a stage was skipped"
        decided = [e for e in events if e.phase is Phase.SHIFTING and e.stage == stage and e.look is not None][-1]
        opened = [e for e in events if e.phase is Phase.OBSERVING and e.epoch < decided.epoch and e.look is None]
        began = [e for e in opened if not e.missed and e.stage == stage - 1][-1]
        looks = [e.look for e in events if began.epoch < e.epoch <= decided.epoch and e.look is not None]
        truth = [look for split, look in self.world.metrics.given if split.canary_weight == was]
        assert all(look in truth for look in looks), "evidence that production never gave at this weight"
        assert looks[-1].window_end == decided.at, "the deciding look was not fresh"
        assert sum(look.window_end - look.window_start for look in looks) >= POLICY.dwell_s[stage - 1]
        assert sum(look.canary.graded for look in looks) >= POLICY.min_canary_requests
        assert decided.at - since >= POLICY.dwell_s[stage - 1] - SLOW_S

    @rule(quality=st.sampled_from([0.7, 0.7, 0.75, 0.2]), verdict=st.sampled_from(["PASS", "PASS", "PASS", "FAIL"]))
    def propose(self, quality, verdict):
        self.proposals += 1
        digest = f"model-{self.proposals}"
        before = self.world.state
        proposed = self.world.propose(digest, number=self.registered + 1, verdict=verdict, data=digest)
        if proposed.refused:
            assert verdict != "PASS" or before.active
            assert self.world.state == before
            return
        assert verdict == "PASS"
        self.registered += 1
        self.bundles[digest] = "bundle"
        self.world.metrics.canary = {"quality": quality}

    @precondition(lambda self: self.world.state.quarantined)
    @rule(data=st.data())
    def propose_quarantined(self, data):
        digest = data.draw(st.sampled_from(sorted(self.world.state.quarantined)))
        assert self.world.propose(digest, number=99, data=f"again-{self.proposals}").refused

    @rule(seconds=st.sampled_from([1.0, 500.0]))
    def time_passes(self, seconds):
        self.world.now += seconds

    @rule(kind=st.sampled_from(["good", "good", "good", *SPOILERS]))
    def metrics_turn(self, kind):
        self.world.metrics.spoil = SPOILERS[kind]

    @rule(quality=st.sampled_from([0.7, 0.7, 0.7, 0.2]))
    def canary_turns(self, quality):
        self.world.metrics.canary = {"quality": quality}

    @precondition(lambda self: not self.world.state.active)
    @rule()
    def propose_good(self):
        self.propose(0.7, "PASS")
        self.world.metrics.spoil = SPOILERS["good"]

    @precondition(lambda self: self.world.state.active)
    @rule(seconds=st.sampled_from([0.0, 30.0, 120.0]), times=st.integers(1, 6))
    def ticks(self, seconds, times):
        for _ in range(times):
            self.world.now += seconds
            self.tick()

    @precondition(lambda self: self.world.state.active)
    @rule(at=st.integers(1, 7), seconds=st.sampled_from([0.0, 110.0]))
    def crashing_tick(self, at, seconds):
        self.world.now += seconds

        def crash():
            raise Crash

        self.left, self.blow = at, crash
        try:
            self.tick()
        except Crash:
            pass
        finally:
            self.blow = None

    @precondition(lambda self: self.world.state.active)
    @rule(
        at=st.sampled_from([1, 2, 3, 3, 3, 4, 5, 6]),
        others=st.sampled_from([1, 4]),
        seconds=st.sampled_from([0.0, 110.0, 110.0]),
        harm=st.booleans(),
    )
    def overtaken_tick(self, at, others, seconds, harm):
        """A second controller runs ticks of its own while the first one stands at one of its side effects."""

        def overtake():
            if harm:
                self.world.metrics.canary, self.world.metrics.spoil = {"quality": 0.2}, SPOILERS["good"]
            for _ in range(others):
                self.world.now += seconds
                self.tick()

        self.left, self.blow = at, overtake
        self.tick()
        self.blow = None

    @rule()
    def tick_of_a_slow_clock(self):
        self.tick(late_s=SLOW_S)

    @precondition(lambda self: self.world.state.proposal is not None)
    @rule()
    def reconcile_twice(self):
        for _ in range(2):
            self.router.apply(wanted_split(self.world.state))
            self.world.registry(self.world.state)
            seen = self.router.read(), dict(self.world.registry.aliases)
        assert seen == (self.router.read(), self.world.registry.aliases)

    @precondition(lambda self: self.world.state.phase is Phase.HELD)
    @rule(seconds=st.sampled_from([30.0, 900.0]), times=st.sampled_from([1, 3, 12]), harm=st.booleans())
    def held_ticks(self, seconds, times, harm):
        """A held canary keeps its weight, whatever the metrics say, or goes to 0 for good; harm is seen in the end."""
        if harm:
            self.world.metrics.canary, self.world.metrics.spoil = {"quality": 0.0}, SPOILERS["good"]
        weight, settled = self.world.state.canary_weight, self.world.state.settled
        for _ in range(times):
            self.ticks(seconds, 1)
            state = self.world.state
            assert state.phase in (Phase.HELD, Phase.ROLLING_BACK, Phase.ROLLED_BACK)
            assert self.world.weight() == (weight if state.phase is Phase.HELD else 0)
        if harm and settled >= 0 and times == 12:
            assert self.world.state.phase is not Phase.HELD, "nobody looked"

    @precondition(lambda self: self.world.state.active)
    @rule(
        action=st.sampled_from(["resume", "resume", "resume", "abort"]),
        sure=st.integers(0, 4),
        at=st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 7]),
        meant=st.sampled_from(["", "it", "it", "another"]),
    )
    def a_person_decides(self, action, sure, at, meant):
        """At any moment, with a crash at any side effect; an abort that returns has moved the traffic."""
        before = self.world.state
        if action == "abort" and sure < 4:
            return
        rollout = before.rollout if meant == "it" else meant
        decision = RolloutDecision(action=action, reason="a person says so", by="operator", rollout=rollout)

        def crash():
            raise Crash

        self.left, self.blow = at, crash
        try:
            done = decide(self.ports(), decision, self.world.now)
        except Crash:
            return
        finally:
            self.blow = None
        if meant == "another" or (action == "resume" and before.phase is not Phase.HELD):
            assert done.refused
            assert self.world.state == before
        elif action == "abort":
            assert self.world.state.phase in (Phase.ABORTED, Phase.ROLLED_BACK)
            assert self.world.weight() == 0
        else:
            assert (self.world.state.phase, self.world.state.misses) == (Phase.SHIFTING, 0)

    @rule(kind=st.sampled_from(["good", "missing"]))
    def left_alone_it_ends_or_asks_a_person(self, kind):
        self.world.metrics.spoil = SPOILERS[kind]
        for _ in range(40):
            if not self.world.state.active or self.world.state.phase is Phase.HELD:
                return
            self.world.now += 100.0
            self.tick()
        raise AssertionError(f"{self.world.state.phase} after 40 ticks")

    @invariant()
    def the_record_is_sound(self):
        events = read_events(self.store, NAME)
        if len(events) == self.checked:
            return
        self.checked = len(events)
        assert [e.epoch for e in events] == list(range(1, len(events) + 1))
        active, doomed = False, set[str]()
        for last, event in pairwise([*events[:1], *events]):
            assert event.by or (last.phase, event.phase) != (Phase.HELD, Phase.SHIFTING), "nobody resumed it"
            assert not (event.proposal and active), "two rollouts at once"
            active = event.phase not in TERMINAL
            over = (Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.ABORTED)
            assert event.rollout not in doomed or event.phase in over, "a rollback was taken back"
            if event.phase is Phase.ROLLING_BACK:
                doomed.add(event.rollout)
        self.doomed = doomed
        state, result = fold(events), champion(self.store, NAME)
        assert state == self.world.state
        if result is not None:
            assert self.bundles[result.model.digest] == "bundle"
            assert 1 <= result.version <= self.registered
            assert result.promotions == sum(e.phase is Phase.PROMOTED for e in events)
            assert result.model.digest not in state.quarantined


RolloutMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    phases=[
        HypothesisPhase.explicit,
        HypothesisPhase.generate,
    ],  # shrinking takes minutes
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestRollout = pytest.mark.slow(RolloutMachine.TestCase)
