"""A training under interruptions, on a virtual clock: what its journal would say, and where its time went.

Owns how a gang is told to go, dies, waits for nodes and starts again. The decisions are the trainer's own code:
`SaveSchedule` says when to save, `account` draws the account, and SIGTERM is obeyed as in
pipeline/training/callback.py.
The rule of the schedules: nodes are interrupted independently, each as a Poisson process, and one node's interruption
is the gang's (the model of Young, doi:10.1145/361147.361115, and Daly, doi:10.1016/j.future.2004.11.016). Departure:
nobody is interrupted while the gang waits, so times are counted while it holds its nodes. Spot reclaims come in bursts;
a burst is one interruption of the gang, so independent nodes overcount. Steps, saves and starts never vary, and there
are no held-out answers.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from pipeline.core.storage import Record
from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import SaveSchedule
from pipeline.training.goodput import account
from pipeline.training.journal import Kind, TrainingEvent
from pipeline.training.result import Goodput

Phase = Literal["start", "step", "save", "end"]
BACKSTOP = 0.9
"""Of the grace, after which the trainer ends whatever it does (pipeline/training/callback.py)."""
OFTEN, MOST_STEPS = 30, 20_000
"""Of a schedule that an interval is planned with: interruptions on average, and steps. All candidates share the luck of
the draw; where the second is the limit, interruptions are so rare that the interval hardly matters."""


class Profile(Record):
    """One training on one pool. Step, save and interval are seed 000's (7B with LoRA on two p4d); it starts in a minute
    once it has its nodes, and has them again four minutes after it lost one: restarts of 300 s."""

    work_s: PositiveFloat = 5 * 3600.0
    """Of steps alone."""
    step_s: PositiveFloat = 48.0
    """Of a whole batch of generation, where GRPO uses one for several steps."""
    save_s: PositiveFloat = 8.0
    start_s: NonNegativeFloat = 60.0
    """From a process's start to its first step: imports, weights, rendezvous."""
    wait_s: NonNegativeFloat = 240.0
    """From the end of one gang to the start of the next one's processes: capacity, nodes, images."""
    end_s: NonNegativeFloat = 30.0
    """The export."""
    notice_s: NonNegativeFloat = 120.0
    """From SIGTERM to the node's end; 0: nobody is told."""
    grace_s: PositiveFloat = 100.0
    """From SIGTERM to SIGKILL."""
    sigterm_saves: float = Field(default=1.0, ge=0, le=1)
    """How often a notice leads to a checkpoint where there is time for one. Field reports: 0 of 6."""
    checkpoints: Checkpoints = Checkpoints()

    @property
    def steps(self) -> int:
        return max(1, round(self.work_s / self.step_s))


class TimeInterval(Record):
    """How often to save, found by simulation, beside what Young's and Daly's rule says."""

    nodes: int
    interruption_every_s: float
    """Of the whole gang, on average."""
    best_s: float
    """Seconds of training between two saves."""
    best_goodput: float
    young_daly_s: float
    young_daly_goodput: float


def run(profile: Profile, interruptions_at: Sequence[float], seed: int = 0) -> Goodput:
    """Seconds by cause of a training that is interrupted at those seconds of the time that it holds its nodes."""
    return account(journal(profile, interruptions_at, seed=seed))


def journal(
    profile: Profile, interruptions_at: Sequence[float], until_s: float = math.inf, seed: int = 0
) -> list[TrainingEvent]:
    """What the trainer's journal would say, from second 0 on.

    `until_s`: stop to look after so many seconds on its nodes, done or not. `seed`: of which notices lead to a save.
    """
    gang = _SimulatedGang(profile, interruptions_at, until_s, random.Random(seed))
    while not gang.attempt() and gang.ran_s < until_s:
        gang.waited_s += profile.wait_s
    return gang.events


def schedule(per_node_every_s: float, nodes: int, horizon_s: float, seed: int) -> list[float]:
    """When a gang of `nodes` is interrupted up to `horizon_s`; more nodes add interruptions to those of fewer."""
    assert per_node_every_s > 0, per_node_every_s

    def arrivals(node: int) -> Iterator[float]:
        dice, at = random.Random(f"{seed}/{node}"), 0.0
        while True:
            at += dice.expovariate(1 / per_node_every_s)
            yield at

    return sorted(at for node in range(nodes) for at in takewhile(lambda at: at < horizon_s, arrivals(node)))


def plan_interval(
    profile: Profile, nodes: int, per_node_interruption_every_s: float, schedules: int = 3
) -> TimeInterval:
    """The interval with the highest goodput from a quarter to four times of Young's and Daly's, and theirs.

    Nobody is told of an interruption here: a save at SIGTERM is a bonus, the interval is the guarantee. The training is
    one without end, looked at after OFTEN interruptions, whatever `profile.work_s`: a short one has too few to plan by.
    """
    every_s = per_node_interruption_every_s / nodes
    rule = Checkpoints(interruption_every_s=every_s)
    cadence = SaveSchedule(rule)
    cadence.saved(profile.save_s)
    rule_s = cadence.interval_s
    assert rule_s is not None, "it has a save and a mean time"
    # Steps shorter than a sixth of the interval change nothing but the time that it takes to simulate them.
    step_s = max(profile.step_s, rule_s / 6)
    rule_steps = max(1, round(rule_s / step_s))
    until_s = min(OFTEN * every_s, MOST_STEPS * step_s)
    drawn = [schedule(per_node_interruption_every_s, nodes, until_s, seed) for seed in range(schedules)]
    endless = profile.model_copy(update={"work_s": 1e12, "step_s": step_s, "notice_s": 0.0})

    def goodput(checkpoints: Checkpoints) -> float:
        tried = endless.model_copy(update={"checkpoints": checkpoints})
        return sum(account(journal(tried, at, until_s)).share for at in drawn) / schedules

    candidates = {max(1, round(rule_steps * 2 ** (k / 2))) for k in range(-4, 5)}
    tried = {steps: goodput(Checkpoints(every_steps=steps)) for steps in sorted(candidates)}
    by_rule = goodput(rule.model_copy(update={"every_steps": rule_steps}))
    best_goodput, best_s = max((by_rule, rule_s), *((share, steps * step_s) for steps, share in tried.items()))
    return TimeInterval(
        nodes=nodes,
        interruption_every_s=every_s,
        best_s=best_s,
        best_goodput=best_goodput,
        young_daly_s=rule_s,
        young_daly_goodput=by_rule,
    )


class _SimulatedGang:
    """The processes of a training as one. `ran_s` is the clock while it holds its nodes, `waited_s` the rest."""

    def __init__(
        self, profile: Profile, interruptions_at: Sequence[float], until_s: float, dice: random.Random
    ) -> None:
        self._profile, self._dice = profile, dice
        self._due = deque(sorted({*interruptions_at, until_s}))
        self._until_s = until_s
        self._at = self._resume = 0
        self._told, self._dies_at = False, math.inf
        self.events: list[TrainingEvent] = []
        self.ran_s = self.waited_s = 0.0

    def attempt(self) -> bool:
        """From the start of the processes to their end; whether the training is done."""
        profile, self._at = self._profile, self._resume
        cadence = SaveSchedule(profile.checkpoints)
        while self._due and self._due[0] <= self.ran_s:
            self._due.popleft()
        self._told, self._dies_at = False, math.inf
        self._say("started")
        if not self._spend("start", profile.start_s):
            return False
        self._say("ready")
        saved_at = self.ran_s
        for step in range(self._resume + 1, profile.steps + 1):
            if not self._spend("step", profile.step_s):
                return False
            self._at = step
            self._say("step", step=profile.step_s)
            leaving = self._told  # who is told during a save hears it after the next step
            if step < profile.steps and (leaving or cadence.due(step, self.ran_s - saved_at)):
                if not self._spend("save", profile.save_s):
                    return False
                cadence.saved(profile.save_s)
                self._resume, saved_at = step, self.ran_s
                self._say("saved", save=profile.save_s)
                if leaving:
                    return False
        if not self._spend("end", profile.end_s):
            return False
        self._say("ended", why="done")
        return True

    def _spend(self, phase: Phase, seconds: float) -> bool:
        """Let time pass; False for a gang that does not live to see the end of it."""
        end = self.ran_s + seconds
        if not self._told and self._due and self._due[0] <= end:
            self._tell(phase, end - self._due[0])
        self.ran_s = min(end, self._dies_at)
        return end <= self._dies_at

    def _tell(self, phase: Phase, rest_s: float) -> None:
        """An interruption, `rest_s` before the end of a phase: when the gang dies of it, if it does not leave before.

        The trainer leaves at once with no model loaded, or where the step under way, or else the next one, and a save
        would take longer than the grace.
        """
        profile, at = self._profile, self._due[0]
        self._told, self._dies_at = True, at
        if profile.notice_s and at < self._until_s:
            self.ran_s = at
            self._say("stopping", why="SIGTERM")
            needed_s = (rest_s if phase == "step" else profile.step_s) + profile.save_s
            fits = phase != "start" and needed_s <= profile.grace_s
            if fits and self._dice.random() < profile.sigterm_saves:
                self._dies_at = at + min(BACKSTOP * profile.grace_s, profile.notice_s)

    def _say(self, kind: Kind, why: str = "", **seconds: float) -> None:
        at = self.ran_s + self.waited_s
        self.events.append(TrainingEvent(kind=kind, at=at, step=self._at, seconds=seconds, why=why))
