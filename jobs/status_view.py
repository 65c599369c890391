"""The screen of `pt status` as lines: named sentences folded to the terminal, and a table of iterations."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from assets.kpi import HEAD, IterationView, Kpi
from jobs.screen import BOLD, CYAN, GREEN, GREY, RED, YELLOW, named, paint
from pipeline.rollout.record import TERMINAL, Phase
from pipeline.rollout.status import RolloutStatus
from pipeline.views.rollout import spell

if TYPE_CHECKING:
    from jobs.status import DeploymentStatus

COLOURS = {
    "promoted": GREEN,
    "in rollout": CYAN,
    "in progress": CYAN,
    "held": YELLOW,
    "registered": GREEN,
    "refused": YELLOW,
    "stopped": RED,
    "rolled back": RED,
    "unreadable": RED,
}


def view(read: "DeploymentStatus", now: float, width: int, colour: bool = False) -> Iterator[str]:
    """The screen. Commands are not folded: they are there to be copied."""
    yield paint(f"{read.deployment}: {read.model}", BOLD, colour)
    yield from named("data root", read.data_root, width)
    yield from named("iteration", "none yet" if read.iteration is None else _iteration(read.iteration, now), width)
    for name, text in read.iteration.stages if read.iteration is not None else ():
        yield from named(f"  {name}", text, width)
    yield from named("run", _run(read), width)
    yield from named("champion", _champion(read.kpi, now), width)
    yield from named("rollout", _rollout(read.rollout), width)
    for number, each in enumerate(read.waits_for_person):
        yield from (paint(line, YELLOW, colour) for line in named("" if number else "a person", each, width))
    if read.run is not None:
        yield from named("next", "nothing: the run goes on by itself, and the same launch follows it", width)
    else:
        yield from named("next", read.next.command)
        yield from named("", read.next.purpose, width)
    if read.kpi.iterations:
        yield from ("", *_table(read.kpi.iterations, colour), "")
        for name, value, note in read.kpi.sums():
            yield from named(name, f"{value}; {note}", width)
        for reason in read.kpi.cost.unknown:
            yield from named("", f"not in the cost: {reason}", width)
    for problem in read.kpi.problems:
        yield from named("problem", problem, width)


def _table(iterations: Sequence[IterationView], colour: bool) -> Iterator[str]:
    """A row for each iteration, the newest first."""
    rows = [HEAD, *(tuple(cell or "-" for cell in each.row) for each in reversed(iterations))]
    widths = [max(len(each[n]) for each in rows) for n in range(len(HEAD))]
    for number, each in enumerate(rows):
        line = "  ".join(cell.ljust(size) for cell, size in zip(each, widths, strict=True)).rstrip()
        yield paint(line, COLOURS.get(each[1], "") if number else GREY, colour)


def _iteration(newest: IterationView, now: float) -> str:
    number = f"{newest.number + 1} ({newest.iteration})" if newest.number is not None else newest.iteration
    stage = f" at stage {newest.stage}" if newest.stage else ""
    step = f", step {newest.step}" if newest.step is not None else ""
    version = f" as version {newest.version}" if newest.state == "promoted" else ""
    why = f": {newest.detail}" if newest.detail and newest.state != "in rollout" else ""  # which has a line of its own
    return f"{number}, begun {spell(max(0.0, now - newest.begun_at))} ago, {newest.state}{version}{stage}{step}{why}"


def _run(read: "DeploymentStatus") -> str:
    if not read.runs_seen:
        return "not known here: this instance's runs are no processes of this machine; Dagster shows them"
    return "none is at work" if read.run is None else f"{read.run.run[:8]} of {read.run.job} is at work"


def _champion(kpi: Kpi, now: float) -> str:
    name = f"version {kpi.champion_version}" if kpi.champion_version else "the recipe's base model"
    since = f", promoted {spell(max(0.0, now - kpi.champion_since))} ago" if kpi.champion_since else ""
    right = kpi.champion_quality
    quality = f"; {right.value:.1%} ({right.low:.1%} to {right.high:.1%}) on {kpi.suite}" if right else ""
    return f"{name}{since}{quality}"


def _rollout(rollout: RolloutStatus) -> str:
    if not rollout.routed:
        before = "" if rollout.candidate is None else f"version {rollout.candidate.version}: {rollout.phase}; "
        return f"{before}{rollout.router_reason}; waits for {rollout.waits_for}"
    if rollout.candidate is None:
        return f"none; waits for {rollout.waits_for}"
    phase = str(rollout.phase).replace("_", " ")
    why = f" ({rollout.reason})" if rollout.reason and rollout.phase is not Phase.PROMOTED else ""
    if rollout.phase in TERMINAL:
        return f"version {rollout.candidate.version}: {phase}{why}; none is open"
    weights = " → ".join(f"{weight}%" for weight in rollout.weights)
    at = f"{phase} at {rollout.weight}% of {weights}"
    return f"version {rollout.candidate.version}: {at}{why}; waits for {rollout.waits_for}"
