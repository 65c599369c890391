"""The account of time against an honest trainer whose clock is ours: it knows what it did with every second."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.training.goodput import account, interruptions
from pipeline.training.journal import Kind, TrainingEvent
from pipeline.training.result import CAUSES, Goodput, Preemption


class Killed(Exception):
    pass


@dataclass
class Trainer:
    """A training on a made-up clock. Durations are multiples of 1/64 s, so that sums of floats are exact."""

    steps: int
    save_every: int
    validate_every: int
    dice: random.Random
    now: float = 1_700_000_000.0
    journal: list[TrainingEvent] = field(default_factory=list)
    truth: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    taken: list[tuple[int, float]] = field(default_factory=list)
    """Steps that the weights on disk or in memory went through, with their seconds."""
    saved: list[int] = field(default_factory=list)
    dies_at: float = float("inf")
    told: dict[str, float] = field(default_factory=dict)
    """Seconds since the last line of the journal, by cause."""

    def some(self, most: int = 64) -> float:
        return self.dice.randrange(1, most) / 64

    def spend(self, cause: str, seconds: float) -> float:
        if self.now + seconds > self.dies_at:
            self.told[cause] = self.told.get(cause, 0.0) + max(0.0, self.dies_at - self.now)
            self.now = max(self.now, self.dies_at)
            raise Killed
        self.now += seconds
        self.told[cause] = self.told.get(cause, 0.0) + seconds
        return seconds

    def tell(self, kind: Kind, step: int, why: str = "", /, **seconds: float) -> None:
        for cause, spent in self.told.items():
            if cause == "step":
                self.taken.append((step, spent))
            else:
                self.truth[cause] += spent
        self.told = {}
        self.journal.append(TrainingEvent(kind=kind, at=self.now, step=step, seconds=seconds, why=why))

    def attempt(self, lives_s: float, politely: bool, resume_at: int) -> bool:
        """Run until it ends or dies; after a polite signal it finishes its step, saves and goes."""
        for step, seconds in self.taken[resume_at:]:
            assert step > resume_at
            self.truth["lost"] += seconds
        self.taken = self.taken[:resume_at]
        self.tell("started", resume_at)
        signal_at = self.now + lives_s if politely else float("inf")
        self.dies_at = float("inf") if politely else self.now + lives_s
        try:
            self.spend("start", self.some())
            self.tell("ready", resume_at)
            for step in range(resume_at + 1, self.steps + 1):
                self.spend("start" if step == resume_at + 1 else "step", self.some(4))  # what the loop does before it
                self.tell("step", step, step=self.spend("step", self.some()))
                if self.validate_every and step % self.validate_every == 0:
                    self.tell("validated", step, validation=self.spend("validation", self.some()))
                if stop := self.now >= signal_at:
                    self.tell("stopping", step, "SIGTERM")
                if step % self.save_every == 0 or stop:
                    self.tell("saved", step, save=self.spend("save", self.some()))
                    self.saved = [each for each in self.saved if each < step] + [step]
                if stop and step < self.steps:
                    return False
            self.spend("end", self.some())
            self.tell("ended", self.steps, "done")
            return True
        except Killed:
            return False
        finally:
            if self.journal[-1].kind != "ended":
                self.told = {"waiting": sum(self.told.values())}
                self.dies_at = float("inf")
                self.spend("waiting", self.some(200))

    def resume(self, damaged: int) -> int:
        """The step of the newest checkpoint, after the `damaged` newest ones are found to be broken."""
        self.saved = self.saved[: len(self.saved) - damaged]
        return self.saved[-1] if self.saved else 0

    @property
    def true_goodput(self) -> Goodput:
        productive = sum(seconds for _, seconds in self.taken)
        total = self.journal[-1].at - self.journal[0].at
        return Goodput(total_s=total, productive_s=productive, badput_s=self.truth)


kills = st.lists(st.tuples(st.integers(1, 64 * 20), st.booleans(), st.sampled_from([0, 0, 0, 1, 2])), max_size=6)


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4), st.integers(0, 4), kills)
def test_the_account_is_what_an_honest_trainer_did(
    seed: int, steps: int, save_every: int, validate_every: int, kills: list[tuple[int, bool, int]]
) -> None:
    trainer = Trainer(steps, save_every, validate_every, random.Random(seed))
    done, resumed, reached, lost = False, [0], [], []
    for lives, politely, damaged in kills:
        if done := trainer.attempt(lives / 64, politely, resumed[-1]):
            break
        reached.append(max((step for step, _ in trainer.taken), default=0))
        resumed.append(trainer.resume(damaged))
        lost.append(reached[-1] - resumed[-1])
    if not done:
        assert trainer.attempt(float("inf"), False, resumed[-1])
    assert [step for step, _ in trainer.taken] == list(range(1, steps + 1))
    found = account(trainer.journal)
    assert found == trainer.true_goodput
    assert found.total_s == found.productive_s + sum(found.badput_s.values())
    told = interruptions(trainer.journal)
    assert [each.step for each in told] == reached
    assert [each.lost_steps for each in told] == lost
    executed = sum(event.kind == "step" for event in trainer.journal)
    assert executed == steps + sum(each.lost_steps for each in told)


moments = st.floats(-1e6, 1e6) | st.just(1.7e9)
lines = st.builds(
    TrainingEvent,
    kind=st.sampled_from(["started", "ready", "step", "saved", "validated", "stopping", "ended"]),
    at=moments,
    step=st.integers(0, 9),
    seconds=st.dictionaries(st.sampled_from(["step", "save", "validation"]), st.floats(-1e6, 1e6) | st.just(math.nan)),
    why=st.just("SIGTERM"),
)


@given(st.lists(lines, max_size=30))
@example([TrainingEvent(kind="step", at=0, step=1, seconds={"step": -1.0})])
def test_goodput_loses_no_second_and_counts_none_twice(events: Sequence[TrainingEvent]) -> None:
    """Clocks that differ between machines, lines that a kill cut out, seconds that cannot be: still an account."""
    found = account(events)
    assert tuple(found.badput_s) == CAUSES
    assert min(found.productive_s, *found.badput_s.values()) >= 0
    passed = max((e.at for e in events), default=0.0) - events[0].at if events else 0.0
    assert found.total_s == pytest.approx(max(0.0, passed), rel=1e-9, abs=1e-6)
    assert found.total_s == found.productive_s + sum(found.badput_s.values())
    assert 0 <= found.share <= 1
    assert all(each.lost_steps >= 0 for each in interruptions(events))


def journal(*lines: tuple[Kind, float, int]) -> Iterator[TrainingEvent]:
    for kind, at, step in lines:
        yield TrainingEvent(kind=kind, at=at, step=step, why={"stopping": "SIGTERM", "ended": "stopped"}.get(kind, ""))


def test_step_longer_than_the_grace_is_lost_work() -> None:
    events = list(journal(("started", 0, 0), ("ready", 1, 0), ("step", 11, 1), ("saved", 12, 1), ("stopping", 18, 1),
                          ("started", 20, 1), ("ready", 21, 1), ("step", 31, 2), ("ended", 33, 2)))  # fmt: skip
    found = account(events)
    assert found.productive_s == 20
    assert found.badput_s == {"start": 2, "save": 1, "validation": 0, "lost": 6, "waiting": 2, "end": 2}
    assert interruptions(events) == (Preemption(cause="SIGTERM", step=1, lost_steps=0),)


def test_stopped_training_counts_no_step_after_its_best() -> None:
    events = list(journal(("started", 0, 0), ("ready", 1, 0), ("step", 3, 1), ("step", 7, 2), ("ended", 8, 1)))
    found = account(events)
    assert (found.productive_s, found.badput_s["lost"], found.badput_s["end"]) == (2, 4, 1)
    assert interruptions(events) == ()


def test_fall_back_loses_the_steps_of_earlier_attempts_too() -> None:
    events = list(journal(("started", 0, 0), ("ready", 0, 0), ("step", 1, 1), ("step", 2, 2), ("started", 2, 2),
                          ("ready", 2, 2), ("step", 3, 3), ("started", 3, 1), ("ready", 3, 1),
                          ("step", 4, 2)))  # fmt: skip
    found = account(events)
    assert (found.productive_s, found.badput_s["lost"]) == (2, 2)
    assert [each.lost_steps for each in interruptions(events)] == [0, 2]
    assert {each.cause for each in interruptions(events)} == {"killed"}
