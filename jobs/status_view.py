"""The screen of `pt status` as lines: names on the left, sentences folded to the terminal, and a table of iterations.

Owns widths, colours and words for figures. Refuses to read: every figure is in the status that it is given.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from assets.kpi.records import CostTotal, IterationKpi, Kpi
from evals.measurements import ConfidenceInterval
from pipeline.rollout.picture import spell
from pipeline.rollout.record import TERMINAL, Phase

if TYPE_CHECKING:
    from jobs.status import DeploymentStatus

NAME_WIDTH = 12
RED, YELLOW, GREEN, CYAN, GREY, BOLD = "31;1", "33;1", "32", "36;1", "90", "1"
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
NONE = "-"


def view(read: "DeploymentStatus", now: float, width: int, colour: bool = False) -> Iterator[str]:
    """The screen. Commands are not folded: they are there to be copied."""
    yield paint(f"{read.deployment}: {read.model}", BOLD, colour)
    yield from named("data root", read.data_root, width)
    yield from named("iteration", _iteration(read, now), width)
    yield from named("run", _run(read), width)
    yield from named("champion", _champion(read, now), width)
    yield from named("rollout", _rollout(read), width)
    for number, each in enumerate(read.waits_for_person):
        folded = list(named("a person" if number == 0 else "", each, width))
        yield from (paint(line, YELLOW, colour) for line in folded)
    if read.run is not None:
        yield from named("next", "nothing: the run goes on by itself, and the same launch follows it", width)
    else:
        yield f"{'next':<{NAME_WIDTH}}{read.next}"
        yield from named("", read.purpose, width)
    if read.kpi.iterations:
        yield ""
        yield from table(read.kpi.iterations, colour)
        yield ""
        yield from figures(read.kpi, width)
    for problem in read.kpi.problems:
        yield from named("problem", problem, width)


def table(iterations: Sequence[IterationKpi], colour: bool) -> Iterator[str]:
    """A row for each iteration, the newest first."""
    head = ("iteration", "ended", "traces", "kept", "labels", "method", "quality", "gain", "gate", "USD", "device h")
    rows = [head, *(_row(each) for each in reversed(iterations))]
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    left = {0, 1, 5, 8}
    for number, row in enumerate(rows):
        cells = [
            f"{cell:<{size}}" if n in left else f"{cell:>{size}}"
            for n, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        code = GREY if number == 0 else COLOURS.get(row[1], "")
        if code:
            cells[1 if number else 0] = paint(cells[1 if number else 0], code, colour)
        yield "  ".join(cells).rstrip()


def figures(kpi: Kpi, width: int) -> Iterator[str]:
    """What the iterations of the table add up to."""
    shown = len(kpi.iterations)
    ended = ", ".join(f"{count} {state}" for state, count in sorted(kpi.ended.items()))
    yield from named(f"last {shown}", ended, width)
    if kpi.gain is not None:
        yield from named("gain", f"{points(kpi.gain)} of right answers, by the promoted ones together", width)
    yield from named("cost", cost_text(kpi.cost, kpi.gain), width)
    for reason in kpi.cost.unknown:
        yield from named("", f"not in it: {reason}", width)
    time_text = f"interruptions: {kpi.preemptions}, steps computed again: {kpi.lost_steps}"
    if kpi.goodput is not None:
        time_text = f"goodput {kpi.goodput:.0%}, {time_text}"
    yield from named("training", time_text, width)
    if kpi.trace_to_promotion_s is not None:
        waited = spell(kpi.trace_to_promotion_s) if kpi.trace_to_promotion_s else "under a day"
        yield from named("speed", f"{waited} from the newest trace to promotion", width)


def cost_text(cost: CostTotal, gain: float | None) -> str:
    """USD and device hours, and both for each +0.01; `at least` where something is not in them."""
    least, least_hours = ("at least " if missing else "" for missing in (cost.unknown, cost.unknown_hours))
    usd, hours = f"{least}{cost.usd} USD", f"{least_hours}{cost.device_hours:,.2f} device hours"
    per, hours_per = cost.usd_for(gain), cost.hours_for(gain)
    if per is None or hours_per is None:
        return f"{usd}, {hours}"
    return f"{usd}, {hours}; for each +0.01 {least}{per} USD, {least_hours}{hours_per:,.3f} device hours"


def points(share: float) -> str:
    return f"{100 * share:+.1f} points"


def interval(value: ConfidenceInterval) -> str:
    return f"{value.value:.1%} ({value.low:.1%} to {value.high:.1%})"


def named(name: str, text: str, width: int) -> Iterator[str]:
    """A named sentence, folded."""
    folded = textwrap.wrap(text, max(20, width - NAME_WIDTH), break_on_hyphens=False, break_long_words=False) or [""]
    for label, line in zip([name, *[""] * len(folded)], folded, strict=False):
        yield f"{label:<{NAME_WIDTH}}{line}".rstrip()


def paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def _row(each: IterationKpi) -> tuple[str, ...]:
    data, cost = each.data, each.cost
    return (
        each.iteration,
        each.state,
        NONE if data.seen is None else f"{data.seen:,}",
        NONE if data.kept is None else f"{data.kept:.0%}",
        NONE if data.coverage is None else f"{data.coverage:.0%}",
        each.method or NONE,
        NONE if each.quality is None else f"{each.quality.champion.value:.1%} -> {each.quality.candidate.value:.1%}",
        NONE if each.gain is None else f"{100 * each.gain:+.1f}",
        each.verdict or NONE,
        f"{'>=' if cost.unknown else ''}{cost.usd}" if each.costs else NONE,
        f"{'>=' if cost.unknown_hours else ''}{cost.device_hours:.2f}" if each.costs else NONE,
    )


def _iteration(read: "DeploymentStatus", now: float) -> str:
    newest = read.iteration
    if newest is None:
        return "none yet" if not read.ended else read.ended
    number = f"{newest.number + 1} ({newest.iteration})" if newest.number is not None else newest.iteration
    step = f", step {newest.step}" if newest.step is not None else ""
    of_rollout = newest.state in ("in rollout", "promoted")  # which has a line of its own
    text = newest.state if of_rollout else f"{read.ended}{step}"
    return f"{number}, begun {spell(max(0.0, now - newest.begun_at))} ago: {text}"


def _run(read: "DeploymentStatus") -> str:
    if not read.runs_seen:
        return "not known here: this instance's runs are no processes of this machine; Dagster shows them"
    if read.run is None:
        return "none is at work"
    return f"{read.run.run[:8]} of {read.run.job} is at work"


def _champion(read: "DeploymentStatus", now: float) -> str:
    kpi = read.kpi
    name = f"version {kpi.champion_version}" if kpi.champion_version else "the recipe's base model"
    since = f", promoted {spell(max(0.0, now - kpi.champion_since))} ago" if kpi.champion_since else ""
    quality = f"; {interval(kpi.champion_quality)} on {kpi.suite}" if kpi.champion_quality else ""
    return f"{name}{since}{quality}"


def _rollout(read: "DeploymentStatus") -> str:
    rollout = read.rollout
    if not rollout.routed:
        before = "" if rollout.candidate is None else f"version {rollout.candidate.version}: {rollout.phase}; "
        return f"{before}{rollout.router_reason}; waits for {rollout.waits_for}"
    if rollout.candidate is None:
        return f"none; waits for {rollout.waits_for}"
    phase = str(rollout.phase).replace("_", " ")
    weights = " -> ".join(f"{weight}%" for weight in rollout.weights)
    why = f" ({rollout.reason})" if rollout.reason and rollout.phase is not Phase.PROMOTED else ""
    if rollout.phase in TERMINAL:
        return f"version {rollout.candidate.version}: {phase}{why}; none is open"
    at = f"{phase} at {rollout.weight}% of {weights}"
    return f"version {rollout.candidate.version}: {at}{why}; waits for {rollout.waits_for}"
