"""The rollout as a Hypothesis state machine: everybody who acts on it, and what must hold whatever they do.

Invariants are checked by the witness at the router and on the record after each step; machine_world.py has that witness
and what fails by itself.
"""

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from pipeline.core import audit
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.fold import fold, in_rollout, read_log
from pipeline.rollout.notices import notices
from pipeline.rollout.propose import champion
from pipeline.rollout.reconcile import reconcile
from pipeline.rollout.record import TERMINAL, ErasureBlock, Phase, block, read_events
from tests.pipeline.rollout.conftest import NAME
from tests.pipeline.rollout.faults import SLOW_S, SPOILERS, Crash
from tests.pipeline.rollout.machine_world import DAY, DEAD, KINDS, SHORT, UNITS, WEIGHTS, FailingWorld


class RolloutMachine(FailingWorld):
    @rule(
        kind=st.sampled_from(["good", "good", "better", "bad"]),
        verdict=st.sampled_from(["PASS", "PASS", "PASS", "FAIL"]),
        approval=st.booleans(),
        unit=st.sampled_from(["request", "request", "user"]),
    )
    def propose(self, kind, verdict, approval, unit):
        self.proposals += 1
        digest = f"model-{self.proposals}"
        before = self.world.state
        approvers = ("operator", "launcher") if approval else ()
        policy = SHORT.model_copy(update={"approvers": approvers, "unit": unit})
        number = self.registered + 1
        proposed = self.world.propose(digest, number=number, verdict=verdict, data=digest, policy=policy)
        if proposed.refused:
            assert verdict != "PASS" or (before.active and not before.supersedable)
            assert self.world.state == before
            return
        assert verdict == "PASS"
        if before.active:
            assert self.weight() == 0, "the new one has no traffic"
            assert self.world.state.past.finished[before.rollout] is Phase.SUPERSEDED
            assert before.canary_weight <= WEIGHTS[0]
        self.registered += 1
        self.bundles[digest] = "bundle"
        self.world.metrics.canary, self.world.metrics.users = KINDS[kind], UNITS[unit]

    @precondition(lambda self: self.world.state.past.quarantined)
    @rule(data=st.data())
    def propose_quarantined(self, data):
        digest = data.draw(st.sampled_from(sorted(self.world.state.past.quarantined)))
        assert self.world.propose(digest, number=99, data=f"again-{self.proposals}").refused

    @rule(seconds=st.sampled_from([1.0, 500.0]))
    def time_passes(self, seconds):
        self.waits(seconds)

    @precondition(lambda self: not self.world.state.active)
    @rule(unit=st.sampled_from(["request", "user"]))
    def propose_good(self, unit):
        self.healthy()
        self.propose("good", "PASS", False, unit)

    @precondition(lambda self: self.world.state.active)
    @rule(
        kind=st.sampled_from(["good", "good", "better", *KINDS]),
        times=st.integers(2, 24),
        requests=st.sampled_from([40_000, 40_000, 4_000]),
    )
    def nothing_else_happens(self, kind, times, requests):
        """Long enough for a dwell and its advance test, or for what is wrong with the canary to show."""
        self.healthy()
        self.world.metrics.canary, self.world.metrics.requests = KINDS[kind], requests
        for _ in range(times):
            self.waits(30.0)
            self.tick()

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
            few_users = self.world.metrics.users != UNITS["request"]  # whose answers may prove nothing
            self.world.metrics.canary = KINDS["dead" if few_users else harm]
        weight = max(self.weight(), self.world.state.canary_weight)
        for _ in range(times):
            self.ticks(seconds, 1)
            assert self.world.state.phase in (Phase.HELD, Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.ABORTED)
            assert self.weight() <= weight
        if times == 12 and self.world.state.canary_weight:
            raise AssertionError("nobody looked")

    @precondition(lambda self: self.world.state.phase is Phase.OBSERVING and self.weight() > 0)
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
    @rule(of=st.sampled_from(["it", "it", "other", ""]), by=st.sampled_from(["operator", "launcher", "eve"]))
    def an_approval_comes(self, of, by):
        state = self.world.state
        assert state.proposal is not None
        rollout = state.rollout if of == "it" else of
        decision = RolloutDecision(action="approve", reason="looked at it", by=by, rollout=rollout)
        done = decide(self.ports(), decision, self.world.now)
        due = state.phase is Phase.GATED and state.proposal.policy.approvers
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
            assert self.world.state.watch.misses == 0

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
        waits = state.phase is Phase.GATED and state.proposal.policy.approvers
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
            self.judged(last, event)
            over = (Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.ABORTED)
            assert event.rollout not in doomed or event.phase in over, "a rollback was taken back"
            if event.phase is Phase.ROLLING_BACK:
                doomed.add(event.rollout)
        self.doomed = doomed
        log = read_log(self.store, NAME)
        assert log == fold(events), "a snapshot changes nothing"
        assert notices(log.events) == notices(events)
        state, result = log.state, champion(self.store, NAME)
        assert state == self.world.state
        if state.active and state.proposal is not None:
            assert state.proposal.version.model.digest in in_rollout(self.store, NAME)
        assert state.past.quarantined.keys() <= in_rollout(self.store, NAME).keys()
        if result is not None:
            assert self.bundles[result.model.digest] == "bundle"
            assert 1 <= result.version <= self.registered
            assert result.promotions == sum(e.phase is Phase.PROMOTED for e in events)
            assert result.model.digest not in state.past.quarantined
        written = [(e.kind, e.subject) for e in audit.entries(self.store)]
        assert len(written) == len(set(written)), "audited twice"
