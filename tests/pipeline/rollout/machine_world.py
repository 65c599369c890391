"""What the rollout's state machine is made of before anybody acts: its world, and the witness at the router.

The witness sees where traffic really moves, against what production's metrics really said and the time that really
passed.
"""

import shutil
import tempfile
from itertools import accumulate
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.rollout.controller import tick
from pipeline.rollout.record import Phase, read_events
from pipeline.rollout.router import RolloutPorts, Split
from pipeline.rollout.rules import comparability_problem, harm, unproven
from tests.pipeline.rollout.conftest import NAME, POLICY, FusedStore, World
from tests.pipeline.rollout.faults import SLOW_S, SPOILERS, FaultyRouter

SHORT = POLICY.model_copy(update={"max_look_s": 30.0, "dwell_s": (60.0, 90.0, 60.0), "max_wait_s": 600.0})
WEIGHTS = tuple(SHORT.canary_weights[stage] for stage in range(3))
DAY = 86_400.0
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
DEAD = {"error_rate": 1.0, "graded": 0.0}
KINDS = {
    "good": {},
    "better": {"quality": 0.75},
    "bad": {"quality": 0.2},
    "dead": DEAD,
    "doubtful": {"quality": 0.67},
    "slow": {"seconds": 9.0},
    "hardly graded": {"graded": 0.5, "ungraded": 0.5},
}
UNITS = {"request": ("", ""), "user": ("a", "b"), "not sticky": ("a", "a")}
"""Letters of both arms' users."""


class WitnessedRollout(RuleBasedStateMachine):
    @initialize()
    def build(self):
        self.folder = tempfile.mkdtemp(dir=MEMORY)
        self.store = FusedStore(self.folder)
        self.left, self.blow = 0, None
        self.store.fuse = self.fuse
        self.world = World(self.store)
        self.world.router = self.router = FaultyRouter(self.store, NAME, self.fuse, self.witness)
        self.world.metrics.really = self.routed
        self.passed = 0.0
        """Seconds that really passed; the clock may jump."""
        self.bundles: dict[str, str] = {}
        self.proposals = self.registered = self.jumps = 0
        self.doomed: set[str] = set()
        self.in_force_since, self.jumps_before = 0.0, 0
        self.turn = ("", 0)
        """Rollout and epoch of the decision that the weight in force follows."""
        self.wish: tuple[str, int] | None = None
        """Rollout whose weight a person lowered, and the record's epoch then."""
        self.violation: AssertionError | None = None
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

    def routed(self, split: Split) -> Split:
        """What production does: as the router routes, whatever it reads."""
        real = self.router.really
        weight = real.canary_weight if real is not None and real.rollout == split.rollout else 0
        return split.model_copy(update={"canary_weight": weight, "champion_weight": 100 - weight})

    def ports(self):
        return RolloutPorts(self.store, NAME, self.router, self.project, self.world.metrics, intact=lambda _: True)

    def waits(self, seconds):
        self.world.now += seconds
        self.passed += seconds

    def tick(self, late_s=0.0):
        tick(self.ports(), self.world.now - late_s)

    def weight(self):
        real = self.router.really
        return real.canary_weight if real is not None and real.rollout == self.world.state.rollout else 0

    def healthy(self):
        self.router.fault, self.router.slot, self.router.asked = "", "", None
        self.world.metrics.spoil, self.world.metrics.requests = SPOILERS["good"], 40_000

    def witness(self, before: Split | None, after: Split):
        """Called with what the router really does, right after it obeyed. What it finds is kept until the step is over:
        an error of the router's is no end of a tick."""
        try:
            self.check(before, after)
        except AssertionError as violation:
            self.violation = self.violation or violation

    @invariant()
    def no_weight_moved_wrongly(self):
        if self.violation is not None:
            raise self.violation

    def check(self, before: Split | None, after: Split):
        events = [e for e in read_events(self.store, NAME) if e.rollout == after.rollout]
        by_hand = {e.weight for e in events if e.weight is not None}
        assert after.canary_weight in {0, *WEIGHTS} | by_hand
        same = before is not None and before.rollout == after.rollout
        was = before.canary_weight if same else 0
        since, jumps = self.in_force_since, self.jumps - self.jumps_before
        turn = max((e.epoch for e in events if e.phase is Phase.SHIFTING and not e.missed), default=0)
        if after.canary_weight > was and (after.rollout, turn) != self.turn:
            self.in_force_since, self.jumps_before, self.turn = self.passed, self.jumps, (after.rollout, turn)
        if after.canary_weight:
            assert after.expires_at is not None, "a canary without a lease"
        if after.canary_weight <= was:
            return
        assert after.rollout not in self.doomed, "a weight rose after the rollback was decided"
        assert all(e.phase is not Phase.ROLLING_BACK for e in events)
        read_back = {
            WEIGHTS[e.stage] for e in events if e.phase is Phase.OBSERVING
        }  # or so it read, of a router that lies
        stays = events[-1].phase is Phase.HELD and after.canary_weight in read_back
        assert events[-1].phase in (Phase.SHIFTING, Phase.OBSERVING) or stays, "it rose by itself"
        unknown = self.router.slot == "few" and before is None  # nobody is known to be the champion
        ready = self.router.slot == "" or self.router.fault == "late" or unknown
        assert ready, f"a weight on a slot that is not ready: {self.router.slot}"
        proposal = events[0].proposal
        assert proposal is not None
        stage = WEIGHTS.index(after.canary_weight)
        if proposal.policy.approvers:
            approvals = [(e.rollout, e.by) for e in events if e.action == "approve"]
            assert approvals == [(proposal.rollout, "operator")]
        if self.wish is not None and self.wish[0] == after.rollout:
            assert any(e.action == "resume" and e.epoch > self.wish[1] for e in events), "a person's wish was undone"
        decided = [e for e in events if e.phase is Phase.SHIFTING and e.stage == stage and e.look is not None]
        resumed = [e for e in events if e.phase is Phase.SHIFTING and e.action == "resume" and e.stage == stage]
        if stage == 0 or (resumed and resumed[-1].epoch > decided[-1].epoch):
            return
        self.rose_on_evidence(events, decided[-1], stage, self.passed - since + jumps * SHORT.max_look_s)

    def judged(self, last, event):
        """Of two events that follow each other: what an observed stage may lead to, by the evidence on record."""
        if event.look is None or last.phase is not Phase.OBSERVING or event.missed:
            return
        proposal = next(e.proposal for e in read_events(self.store, NAME) if e.proposal and e.rollout == event.rollout)
        policy, evidence = proposal.policy, event.look.evidence
        weight = policy.canary_weights[last.stage]
        assert event.phase is Phase.ROLLING_BACK or harm(evidence, policy) is None, "harm was proven"
        if event.phase in (Phase.OBSERVING, Phase.SHIFTING, Phase.PROMOTED):
            assert not comparability_problem(evidence, weight, policy), "it went on in doubt"
        if event.phase in (Phase.SHIFTING, Phase.PROMOTED):
            assert not unproven(evidence, policy, weight), "not proven to be no worse"

    def rose_on_evidence(self, events, decided, stage, really_s):
        began = [e for e in events if e.phase is Phase.OBSERVING and e.epoch < decided.epoch and e.look is None]
        began = [e for e in began if not e.missed and e.stage == stage - 1][-1]
        looks = [e.look for e in events if began.epoch < e.epoch <= decided.epoch and e.look is not None]
        counted = [
            e.look for e in events if began.epoch < e.epoch <= decided.epoch and e.look is not None and not e.missed
        ]
        given = {
            (look.window_start, look.window_end)
            for split, look in self.world.metrics.given
            if split.canary_weight == WEIGHTS[stage - 1]
        }
        assert all((look.window_start, look.window_end) in given for look in looks), "evidence of another weight"
        assert looks[-1].window_end == decided.at, "the deciding look was not fresh"
        covered = sum(min(look.window_end - look.window_start, SHORT.max_look_s) for look in counted)
        self.adds_up(events, decided, WEIGHTS[stage - 1])
        assert covered >= SHORT.dwell_s[stage - 1]
        assert really_s >= SHORT.dwell_s[stage - 1] - SLOW_S, "a clock bought the dwell"

    def adds_up(self, events, decided, weight):
        """The deciding evidence is that of the stage's newest looks, each once; a stage may have started over."""
        seen = [(e.look.window_start, e.look.window_end) for e in events if e.look and e.epoch <= decided.epoch]
        of_weight = {
            (look.window_start, look.window_end): look.canary.sum().requests
            for split, look in self.world.metrics.given
            if split.canary_weight == weight
        }
        sums = list(accumulate(of_weight[window] for window in reversed(seen) if window in of_weight))
        requests = decided.look.evidence.canary.requests
        assert any(abs(requests - each) < 1e-3 for each in sums), "evidence that no look had"


class FailingWorld(WitnessedRollout):
    """What fails by itself: metrics, canary, router, slots, registry, labels, time."""

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

    @rule(down=st.booleans())
    def registry_turns(self, down):
        self.world.registry.down = down

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
