"""The rollout as a Hypothesis state machine: everybody who acts on it, and what must hold whatever they do.

Invariants are checked where traffic really moves: in the router, against what production's metrics really said and the
time that really passed.
"""

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline import audit
from pipeline.rollout.blocks import ErasureBlock, block
from pipeline.rollout.controller import tick
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.fold import fold, in_rollout
from pipeline.rollout.ports import RolloutPorts
from pipeline.rollout.propose import champion
from pipeline.rollout.reconcile import reconcile
from pipeline.rollout.record import TERMINAL, ApprovalRecord, Phase, read_events
from pipeline.rollout.router import Split
from tests.pipeline.rollout.conftest import NAME, POLICY, FusedStore, World
from tests.pipeline.rollout.faults import SLOW_S, SPOILERS, Crash, FaultyRouter

SHORT = POLICY.model_copy(update={"max_look_s": 30.0, "dwell_s": (60.0, 90.0, 60.0)})
WEIGHTS = tuple(SHORT.weight_at(stage) for stage in range(3))
DAY = 86_400.0
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
DEAD = {"error_rate": 1.0, "graded": 0.0}
KINDS = {"good": {}, "better": {"quality": 0.75}, "bad": {"quality": 0.2}, "dead": DEAD}


class RolloutMachine(RuleBasedStateMachine):
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
        self.wish: tuple[str, int] | None = None
        """Rollout whose weight a person lowered, and the record's epoch then."""
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
        return RolloutPorts(
            self.store, NAME, self.router, self.project, self.world.metrics, intact=lambda _: True,
            notify=self.world.notify,
        )  # fmt: skip

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
        self.world.metrics.spoil = SPOILERS["good"]

    def witness(self, before: Split | None, after: Split):
        """Called with what the router really does, right after it obeyed."""
        events = [e for e in read_events(self.store, NAME) if e.rollout == after.rollout]
        by_hand = {e.weight for e in events if e.weight is not None}
        assert after.canary_weight in {0, *WEIGHTS} | by_hand
        same = before is not None and before.rollout == after.rollout
        was = before.canary_weight if same else 0
        since, jumps = self.in_force_since, self.jumps - self.jumps_before
        if after.canary_weight != was:
            self.in_force_since, self.jumps_before = self.passed, self.jumps
        if after.canary_weight:
            assert after.expires_at is not None, "a canary without a lease"
        if after.canary_weight <= was:
            return
        assert after.rollout not in self.doomed, "a weight rose after the rollback was decided"
        assert all(e.phase is not Phase.ROLLING_BACK for e in events)
        assert events[-1].phase in (Phase.SHIFTING, Phase.OBSERVING), "it rose by itself"
        assert self.router.slot == "" or self.router.fault == "late", "a weight on a slot that is not ready"
        proposal = events[0].proposal
        assert proposal is not None
        if proposal.policy.needs_approval:
            approvals = [e.approval for e in events if e.approval is not None]
            assert [a.model_digest for a in approvals] == [proposal.version.model.digest]
        if proposal.policy.shadow_share:
            assert any(e.phase is Phase.SHADOWING and e.look is not None for e in events)
        if self.wish is not None and self.wish[0] == after.rollout:
            assert any(e.action == "resume" and e.epoch > self.wish[1] for e in events), "a person's wish was undone"
        stage = WEIGHTS.index(after.canary_weight)
        decided = [e for e in events if e.phase is Phase.SHIFTING and e.stage == stage and e.look is not None]
        resumed = [e for e in events if e.phase is Phase.SHIFTING and e.action == "resume" and e.stage == stage]
        if stage == 0 or (resumed and resumed[-1].epoch > decided[-1].epoch):
            return
        self.rose_on_evidence(events, decided[-1], stage, self.passed - since + jumps * SHORT.max_look_s)

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
        assert covered >= SHORT.dwell_s[stage - 1]
        assert really_s >= SHORT.dwell_s[stage - 1] - SLOW_S, "a clock bought the dwell"

    @rule(
        kind=st.sampled_from(["good", "good", "better", "bad"]),
        verdict=st.sampled_from(["PASS", "PASS", "PASS", "FAIL"]),
        approval=st.booleans(),
        shadow=st.sampled_from([0.0, 0.0, 1.0]),
    )
    def propose(self, kind, verdict, approval, shadow):
        self.proposals += 1
        digest = f"model-{self.proposals}"
        before = self.world.state
        policy = SHORT.model_copy(update={"needs_approval": approval, "shadow_share": shadow})
        number = self.registered + 1
        proposed = self.world.propose(digest, number=number, verdict=verdict, data=digest, policy=policy)
        if proposed.refused:
            assert verdict != "PASS" or (before.active and not before.supersedable)
            assert self.world.state == before
            return
        assert verdict == "PASS"
        if before.active:
            assert self.weight() == 0, "the new one has no traffic"
            assert self.world.state.finished[before.rollout] is Phase.SUPERSEDED
            assert before.canary_weight <= WEIGHTS[0]
        self.registered += 1
        self.bundles[digest] = "bundle"
        self.world.metrics.canary = KINDS[kind]

    @precondition(lambda self: self.world.state.quarantined)
    @rule(data=st.data())
    def propose_quarantined(self, data):
        digest = data.draw(st.sampled_from(sorted(self.world.state.quarantined)))
        assert self.world.propose(digest, number=99, data=f"again-{self.proposals}").refused

    @rule(seconds=st.sampled_from([1.0, 500.0]))
    def time_passes(self, seconds):
        self.waits(seconds)

    @rule(kind=st.sampled_from(["good", "good", "good", *SPOILERS]))
    def metrics_turn(self, kind):
        self.world.metrics.spoil = SPOILERS[kind]

    @rule(kind=st.sampled_from(["good", "good", "good", "bad", "dead"]))
    def canary_turns(self, kind):
        self.world.metrics.canary = KINDS[kind]

    @rule(fault=st.sampled_from(["", "", "", "unreadable", "unwritable", "deaf", "lying", "late"]))
    def router_turns(self, fault):
        self.router.fault = fault
        if fault != "late":
            self.router.asked = None

    @rule(fault=st.sampled_from(["", "", "", "loading", "wrong", "raises"]))
    def slot_turns(self, fault):
        self.router.slot = fault

    @precondition(lambda self: not self.world.state.active)
    @rule()
    def propose_good(self):
        self.healthy()
        self.propose("good", "PASS", False, 0.0)

    @precondition(lambda self: self.world.state.active)
    @rule(seconds=st.sampled_from([0.0, 15.0, 30.0, 30.0]), times=st.integers(1, 8))
    def ticks(self, seconds, times):
        for _ in range(times):
            self.waits(seconds)
            self.tick()

    @precondition(lambda self: self.world.state.active)
    @rule(at=st.integers(1, 7), seconds=st.sampled_from([0.0, 30.0]))
    def crashing_tick(self, at, seconds):
        self.waits(seconds)

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
        seconds=st.sampled_from([0.0, 30.0, 30.0]),
        harm=st.booleans(),
    )
    def overtaken_tick(self, at, others, seconds, harm):
        """A second controller runs ticks of its own while the first one stands at one of its side effects."""

        def overtake():
            if harm:
                self.world.metrics.canary, self.world.metrics.spoil = KINDS["bad"], SPOILERS["good"]
            for _ in range(others):
                self.waits(seconds)
                self.tick()

        self.left, self.blow = at, overtake
        self.tick()
        self.blow = None

    @rule()
    def tick_of_a_slow_clock(self):
        self.tick(late_s=SLOW_S)

    @rule(by=st.sampled_from([DAY, -DAY]), ticks=st.integers(1, 2))
    def clock_jumps_and_is_put_right(self, by, ticks):
        self.jumps += 2
        self.world.now += by
        for _ in range(ticks):
            self.waits(10.0)
            self.tick()
        self.world.now -= by

    @precondition(lambda self: self.weight() > 0 and self.router.fault in ("", "unreadable"))
    @rule(share=st.sampled_from([0.0, 0.0, 0.5]))
    def a_person_lowers_the_weight(self, share):
        self.router.moved_by_hand(int(self.weight() * share))
        state = self.world.state
        self.wish = (state.rollout, state.epoch)
        self.in_force_since, self.jumps_before = self.passed, self.jumps
        weight = self.weight()
        for _ in range(3):
            self.waits(30.0)
            self.tick()
        assert self.weight() <= weight
        if self.router.fault == "":
            assert self.world.state.phase is not Phase.OBSERVING

    @precondition(lambda self: self.world.state.active and self.router.really is not None and self.router.fault == "")
    @rule()
    def somebody_raises_the_weight(self):
        if self.router.really.rollout != self.world.state.rollout or self.router.really.canary is None:
            return
        self.router.moved_by_hand(100)
        self.in_force_since, self.jumps_before = self.passed, self.jumps
        self.waits(30.0)
        self.tick()
        assert self.weight() < 100

    @precondition(lambda self: self.world.state.proposal is not None)
    @rule()
    def reconcile_twice(self):
        self.healthy()
        for _ in range(2):
            reconcile(self.ports(), self.world.now)
            seen = self.router.really, dict(self.world.registry.aliases)
        reconcile(self.ports(), self.world.now)
        assert seen == (self.router.really, self.world.registry.aliases)

    @precondition(lambda self: self.world.state.phase is Phase.HELD)
    @rule(
        seconds=st.sampled_from([30.0, 900.0]), times=st.sampled_from([1, 3, 12]), harm=st.sampled_from(["bad", "dead"])
    )
    def held_ticks(self, seconds, times, harm):
        """A held canary keeps its weight or less, whatever the metrics say; harm is seen in the end."""
        if times == 12:
            self.healthy()
            self.world.metrics.canary = KINDS[harm]
        weight = max(self.weight(), self.world.state.canary_weight)
        for _ in range(times):
            self.ticks(seconds, 1)
            assert self.world.state.phase in (Phase.HELD, Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.ABORTED)
            assert self.weight() <= weight
        if times == 12 and self.world.state.canary_weight:
            raise AssertionError("nobody looked")

    @precondition(lambda self: self.world.state.phase in (Phase.SHADOWING, Phase.OBSERVING) and self.weight() > 0)
    @rule(sure=st.integers(0, 3))
    def a_canary_that_answers_nothing_goes(self, sure):
        if sure < 3:
            return
        self.healthy()
        self.world.metrics.canary = DEAD
        for _ in range(4):
            self.waits(30.0)
            self.tick()
        assert self.weight() == 0, "a dead canary kept its traffic"

    @precondition(lambda self: self.world.state.phase is Phase.OBSERVING)
    @rule(sure=st.integers(0, 3))
    def an_unreadable_router_hides_no_harm(self, sure):
        if sure < 3:
            return
        self.healthy()
        self.router.fault, self.world.metrics.canary = "unreadable", KINDS["bad"]
        for _ in range(4):
            self.waits(30.0)
            self.tick()
        assert self.weight() == 0

    @precondition(lambda self: self.world.state.active)
    @rule(sure=st.integers(0, 5))
    def an_erasure_blocks_it(self, sure):
        if sure < 5:
            return
        state = self.world.state
        assert state.proposal is not None
        block(self.store, ErasureBlock(proof="p", digests=(state.proposal.version.model.digest,), iterations=()))
        self.healthy()
        for _ in range(4):
            self.waits(30.0)
            self.tick()
        assert self.world.state.phase in (Phase.ABORTED, Phase.ROLLED_BACK)
        assert self.weight() == 0

    @precondition(lambda self: self.world.state.active)
    @rule(of=st.sampled_from(["it", "it", "model", "bundle", "rollout"]), by=st.sampled_from(["operator", ""]))
    def an_approval_comes(self, of, by):
        state = self.world.state
        assert state.proposal is not None
        approval = ApprovalRecord(
            rollout="other" if of == "rollout" else state.rollout,
            model_digest="other" if of == "model" else state.proposal.version.model.digest,
            bundle_digest="other" if of == "bundle" else state.proposal.bundle_digest,
            by=by,
        )
        decision = RolloutDecision(action="approve", reason="looked at it", by="operator", approval=approval)
        done = decide(self.ports(), decision, self.world.now)
        due = state.phase is Phase.GATED and state.proposal.policy.needs_approval
        assert bool(done.refused) == (not due or of != "it" or by != "operator")
        assert not done.refused or self.world.state == state

    @precondition(lambda self: self.world.state.active)
    @rule(
        action=st.sampled_from(["resume", "resume", "resume", "pause", "abort", "rollback"]),
        sure=st.integers(0, 4),
        at=st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6, 7]),
        meant=st.sampled_from(["", "it", "it", "another"]),
    )
    def a_person_decides(self, action, sure, at, meant):
        """At any moment, with a crash at any side effect; an abort that returns has moved the traffic."""
        before = self.world.state
        if action in ("abort", "rollback", "pause") and sure < 3:
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
        elif action in ("abort", "rollback") and self.router.fault == "":
            assert self.world.state.phase in (Phase.ABORTED, Phase.ROLLED_BACK)
            assert self.weight() == 0
        elif action == "resume":
            assert self.world.state.phase in (Phase.SHIFTING, Phase.GATED, Phase.APPROVED)
            assert self.world.state.misses == 0

    @precondition(lambda self: self.world.state.phase is Phase.PROMOTED)
    @rule()
    def a_promotion_is_not_rolled_back_without_a_way_back(self):
        decision = RolloutDecision(action="rollback", reason="it misbehaves", by="operator")
        assert decide(self.ports(), decision, self.world.now).refused

    @rule(kind=st.sampled_from(["good", "missing"]))
    def left_alone_it_ends_or_asks_a_person(self, kind):
        self.router.fault, self.router.asked = "", None
        self.world.metrics.spoil = SPOILERS[kind]
        for _ in range(100):
            state = self.world.state
            asks = state.phase is Phase.HELD or "approve" in self.may_decide()
            if not state.active or asks:
                return
            self.waits(30.0)
            self.tick()
        raise AssertionError(f"{self.world.state.phase} after 100 ticks: {self.world.state.reason}")

    def may_decide(self):
        state = self.world.state
        waits = state.phase is Phase.GATED and state.proposal.policy.needs_approval
        return ("approve",) if waits else ()

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
        if state.active and state.proposal is not None:
            assert state.proposal.version.model.digest in in_rollout(self.store, NAME)
        assert state.quarantined.keys() <= in_rollout(self.store, NAME)
        if result is not None:
            assert self.bundles[result.model.digest] == "bundle"
            assert 1 <= result.version <= self.registered
            assert result.promotions == sum(e.phase is Phase.PROMOTED for e in events)
            assert result.model.digest not in state.quarantined
        written = [(e.kind, e.subject) for e in audit.entries(self.store)]
        assert len(written) == len(set(written)), "audited twice"
