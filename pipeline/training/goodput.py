"""Where the time of a training went, over all its attempts: one account that sums to the time that passed.

The rule: the journal's events cut the time into intervals, and each interval has one cause. Up to `started` it is
`waiting`; from there to `ready`, and on to the beginning of the first step, `start`. A save and a validation take the
seconds that they measured. All that passes beside them while the loop runs belongs to the step that ends next, as a
step's time is counted from one step to the next: `productive` if the final weights went through it, else `lost`. After
the last step it is `end`. What a killed process did after its last line nobody knows: it is `waiting`, so `lost` is a
lower bound, by less than a step for each kill. Goodput is a share of that whole, as in Google's ML Productivity
Goodput; departure: no cause is left unnamed, the causes always sum to the total. A clock that goes back stands still.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from pipeline.training.journal import TrainingEvent
from pipeline.training.result import CAUSES, Goodput, Preemption

PRODUCTIVE = "productive"


class TimedEvent(NamedTuple):
    """An event, and the seconds since the one before it."""

    event: TrainingEvent
    passed_s: float


Attempt = Sequence[TimedEvent]
"""What one process, or one gang of them, wrote: from `started` to its last line."""


def account(events: Sequence[TrainingEvent]) -> Goodput:
    """Seconds by cause, from the first event to the last. Steps of a training that goes on count as productive."""
    attempts = _attempts(events)
    spent: dict[str, float] = dict.fromkeys((PRODUCTIVE, *CAUSES), 0.0)
    for attempt, kept in zip(attempts, _kept(attempts), strict=True):
        for cause, seconds in _spent(attempt, kept):
            spent[cause] += seconds
    productive = spent.pop(PRODUCTIVE)
    return Goodput(total_s=productive + sum(spent.values()), productive_s=productive, badput_s=spent)


def device_hours(goodput: Goodput, devices: int) -> float:
    """Hours in which the devices were taken: all but the waiting."""
    return devices * (goodput.total_s - goodput.badput_s.get("waiting", 0.0)) / 3600


def interruptions(events: Sequence[TrainingEvent]) -> tuple[Preemption, ...]:
    """Every attempt that another one followed: how it ended, how far it had got, and the steps that were done again."""
    attempts = _attempts(events)
    preemptions: list[Preemption] = []
    for attempt, following in pairwise(attempts):
        stopped = [timed.event.why for timed in attempt if timed.event.kind == "stopping"]
        step = max(timed.event.step for timed in attempt)
        lost = max(0, step - following[0].event.step)
        preemptions.append(Preemption(cause=stopped[-1] if stopped else "killed", step=step, lost_steps=lost))
    return tuple(preemptions)


def _attempts(events: Sequence[TrainingEvent]) -> list[list[TimedEvent]]:
    attempts: list[list[TimedEvent]] = []
    now = events[0].at if events else 0.0
    for event in events:
        if event.kind == "started" or not attempts:
            attempts.append([])
        attempts[-1].append(TimedEvent(event, max(0.0, event.at - now)))
        now = max(now, event.at)
    return attempts


def _kept(attempts: Sequence[Attempt]) -> list[float]:
    """By attempt, the last step of it that the final weights went through: no later attempt resumed before it."""
    kept: list[float] = []
    last = math.inf
    for attempt in reversed(attempts):
        final = attempt[-1].event
        if not kept and final.kind == "ended":
            last = final.step
        kept.append(last)
        last = min(last, attempt[0].event.step)
    return kept[::-1]


def _spent(attempt: Attempt, kept: float) -> Iterator[tuple[str, float]]:
    """Causes and seconds of an attempt; `left` has no cause yet."""
    left, cause = 0.0, "start"
    for event, passed in attempt:
        if event.kind == "started":
            yield "waiting", passed
            continue
        left += passed
        if event.kind == "ready":
            yield "start", left
            left = 0.0
        elif event.kind in ("saved", "validated"):
            name = "save" if event.kind == "saved" else "validation"
            measured = _measured(event, name, left)
            yield name, measured
            left -= measured
        elif event.kind == "step":
            whole = _measured(event, "step", left) if cause == "start" else left
            yield "start", left - whole
            yield PRODUCTIVE if event.step <= kept else "lost", whole
            left, cause = 0.0, "lost"
        elif event.kind == "ended":
            yield "end", left
            left = 0.0
    yield cause, left  # a step that was under way when the process had to go


def _measured(event: TrainingEvent, name: str, left: float) -> float:
    """Seconds that the event says it took, as far as they passed; all of them where it says nothing."""
    return min(left, max(0.0, event.seconds.get(name, left)))
