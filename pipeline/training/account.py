"""Where the time of a training went, over all its attempts: one account that sums to the time that passed. A clock that
goes back stands still."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.core import layout
from pipeline.core.locations import record_of_iteration
from pipeline.core.storage import CheckpointRef, to_json, write_atomically
from pipeline.training.journal import TrainingEvent
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import CAUSES, Goodput, Preemption, TrainingResult


def account(events: Sequence[TrainingEvent]) -> Goodput:
    """Seconds by cause, from the first event to the last. Steps of a training that goes on count as productive."""
    kept, last_kept = math.inf, list[float]()
    if events and events[-1].kind == "ended":
        kept = events[-1].step
    for event in reversed(events):  # the final weights went through no step that a later attempt resumed before
        last_kept.append(kept)
        kept = min(kept, event.step) if event.kind == "started" else kept
    spent: dict[str, float] = dict.fromkeys(("productive", *CAUSES), 0.0)
    left, cause, now = 0.0, "start", events[0].at if events else 0.0
    for event, kept in zip(events, reversed(last_kept), strict=True):
        passed, now = max(0.0, event.at - now), max(now, event.at)
        if event.kind == "started":
            spent[cause] += left  # a step that was under way when the process had to go
            spent["waiting"] += passed
            left, cause = 0.0, "start"
            continue
        left += passed
        if event.kind in ("saved", "validated"):
            name = "save" if event.kind == "saved" else "validation"
            seconds = _measured(event, name, left)
            spent[name] += seconds
            left -= seconds
        elif event.kind == "step":
            seconds = _measured(event, "step", left) if cause == "start" else left
            spent["start"] += left - seconds
            spent["productive" if event.step <= kept else "lost"] += seconds
            left, cause = 0.0, "lost"
        elif event.kind in ("ready", "ended"):
            spent["start" if event.kind == "ready" else "end"] += left
            left = 0.0
    spent[cause] += left
    productive = spent.pop("productive")
    return Goodput(total_s=productive + sum(spent.values()), productive_s=productive, badput_s=spent)


def _measured(event: TrainingEvent, name: str, left: float) -> float:
    """Seconds that the event says it took, as far as they passed; all of them where it says nothing."""
    return min(left, max(0.0, event.seconds.get(name, left)))


def interruptions(events: Sequence[TrainingEvent]) -> tuple[Preemption, ...]:
    """Every attempt that another one followed: how it ended, how far it had got, and the steps that were done again."""
    found: list[Preemption] = []
    reached, why = 0, "killed"
    for number, event in enumerate(events):
        if event.kind == "started":
            if number:
                found.append(Preemption(cause=why, step=reached, lost_steps=max(0, reached - event.step)))
            reached, why = event.step, "killed"
        elif event.kind == "stopping":
            why = event.why
        reached = max(reached, event.step)
    return tuple(found)


def device_hours(goodput: Goodput, devices: int) -> float:
    """Hours in which the devices were taken: all but the waiting."""
    return devices * (goodput.total_s - goodput.badput_s.get("waiting", 0.0)) / 3600


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
        **found,
    )


def write_result(folder: Path, result: TrainingResult) -> None:
    """Publish `result.json` in a training's folder."""
    document = record_of_iteration(folder / layout.RESULT_FILE)
    write_atomically(document.path, to_json(result, document))
