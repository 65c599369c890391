"""Where the time of a training went, over all its attempts: one account that sums to the time that passed. A clock that
goes back stands still."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pipeline.core.storage import CheckpointRef
from pipeline.training.journal import TrainingEvent
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import CAUSES, Goodput, Preemption, TrainingResult

Attempt = list[tuple[TrainingEvent, float]]
"""What one process, or one gang of them, wrote, from `started` to its last line: each event, and the seconds since the
one before it."""


def account(events: Sequence[TrainingEvent]) -> Goodput:
    """Seconds by cause, from the first event to the last. Steps of a training that goes on count as productive."""
    attempts = _attempts(events)
    spent: dict[str, float] = dict.fromkeys(("productive", *CAUSES), 0.0)
    for attempt, kept in zip(attempts, _kept(attempts), strict=True):
        for cause, seconds in _spent(attempt, kept):
            spent[cause] += seconds
    productive = spent.pop("productive")
    return Goodput(total_s=productive + sum(spent.values()), productive_s=productive, badput_s=spent)


def result_of(
    plan: TrainingPlan, events: Sequence[TrainingEvent], checkpoint: CheckpointRef, **found: Any
) -> TrainingResult:
    """The result of a training with this journal. `found`: the other fields."""
    starts = [event.step for event in events if event.kind == "started"]
    return TrainingResult(
        iteration=plan.iteration,
        plan_digest=plan.digest(),
        checkpoint=checkpoint,
        seconds=sum(event.seconds.get("step", 0.0) for event in events if event.kind == "step"),
        attempts=len(starts),
        resumed_from=tuple(step for step in starts if step > 0),
        goodput=account(events),
        preemptions=interruptions(events),
        engine=plan.training.engine,
        **found,
    )


def device_hours(goodput: Goodput, devices: int) -> float:
    """Hours in which the devices were taken: all but the waiting."""
    return devices * (goodput.total_s - goodput.badput_s.get("waiting", 0.0)) / 3600


def interruptions(events: Sequence[TrainingEvent]) -> tuple[Preemption, ...]:
    """Every attempt that another one followed: how it ended, how far it had got, and the steps that were done again."""
    preemptions: list[Preemption] = []
    for attempt, following in pairwise(_attempts(events)):
        stopped = [event.why for event, _ in attempt if event.kind == "stopping"]
        step = max(event.step for event, _ in attempt)
        lost = max(0, step - following[0][0].step)
        preemptions.append(Preemption(cause=stopped[-1] if stopped else "killed", step=step, lost_steps=lost))
    return tuple(preemptions)


def _attempts(events: Sequence[TrainingEvent]) -> list[Attempt]:
    attempts: list[Attempt] = []
    now = events[0].at if events else 0.0
    for event in events:
        if event.kind == "started" or not attempts:
            attempts.append([])
        attempts[-1].append((event, max(0.0, event.at - now)))
        now = max(now, event.at)
    return attempts


def _kept(attempts: Sequence[Attempt]) -> list[float]:
    """By attempt, the last step of it that the final weights went through: no later attempt resumed before it."""
    kept: list[float] = []
    final = attempts[-1][-1][0] if attempts else None
    last = final.step if final is not None and final.kind == "ended" else math.inf
    for attempt in reversed(attempts):
        kept.append(last)
        last = min(last, attempt[0][0].step)
    return kept[::-1]


def _spent(attempt: Attempt, kept: float) -> Iterator[tuple[str, float]]:
    """Causes and seconds of an attempt; `left` has no cause yet."""
    left, cause = 0.0, "start"
    for event, passed in attempt:
        if event.kind == "started":
            yield "waiting", passed
            continue
        left += passed
        if event.kind in ("saved", "validated"):
            name = "save" if event.kind == "saved" else "validation"
            measured = _measured(event, name, left)
            yield name, measured
            left -= measured
        elif event.kind == "step":
            whole = _measured(event, "step", left) if cause == "start" else left
            yield "start", left - whole
            yield "productive" if event.step <= kept else "lost", whole
            left, cause = 0.0, "lost"
        elif event.kind in ("ready", "ended"):
            yield "start" if event.kind == "ready" else "end", left
            left = 0.0
    yield cause, left  # a step that was under way when the process had to go


def _measured(event: TrainingEvent, name: str, left: float) -> float:
    """Seconds that the event says it took, as far as they passed; all of them where it says nothing."""
    return min(left, max(0.0, event.seconds.get(name, left)))
