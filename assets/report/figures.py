"""The figures at the top of a page and its bill: how money, hours, times and endings are written, on every page alike.

Owns the words. Refuses to compute: every figure is in the key figures that it is given.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from assets.kpi.records import CostTotal, IterationKpi
from pipeline.rollout.picture import spell

UNKNOWN = "unknown"


class PageTable(NamedTuple):
    """Rows of texts below a head; `numbers`: columns that are ranged right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


class KeyFigure(NamedTuple):
    """A figure that stands large at the top of a page, and a line on it."""

    name: str
    value: str
    note: str = ""


class PageLink(NamedTuple):
    """`href` is "" where there is no file."""

    name: str
    text: str
    href: str = ""


def figures_of(kpi: IterationKpi) -> Iterator[KeyFigure]:
    """The figures at the top; one that the iteration does not have yet is left out."""
    data, cost = kpi.data, kpi.cost
    if kpi.quality is not None:
        gain = kpi.quality.difference
        yield KeyFigure(
            f"right answers on {kpi.quality.suite}",
            f"{kpi.quality.champion.value:.1%} → {kpi.quality.candidate.value:.1%}",
            f"{100 * gain.value:+.1f} points, 95% {100 * gain.low:+.1f} to {100 * gain.high:+.1f}",
        )
    if data.kept is not None:
        yield KeyFigure("traces kept", f"{data.kept:.0%}", f"{data.admitted:,} of {data.seen:,}")
    if data.coverage is not None:
        yield KeyFigure("label coverage", f"{data.coverage:.0%}", f"{data.labelled:,} labels")
    if kpi.training is not None:
        lost = f"interruptions: {kpi.training.preemptions}, steps lost: {kpi.training.lost_steps}"
        share = UNKNOWN if kpi.training.goodput is None else f"{kpi.training.goodput:.0%}"
        yield KeyFigure("training goodput", share, lost)
    if kpi.costs:
        yield KeyFigure("cost so far", usd_text(cost), hours_text(cost))
    if kpi.trace_to_promotion_s is not None:
        yield KeyFigure("newest trace to promotion", waited_text(kpi.trace_to_promotion_s))


def usd_text(cost: CostTotal) -> str:
    return f"{'≥ ' if cost.unknown else ''}{cost.usd} USD"


def hours_text(cost: CostTotal) -> str:
    return f"{'≥ ' if cost.unknown_hours else ''}{cost.device_hours:,.2f} device hours"


def waited_text(seconds: float) -> str:
    """Traces are known by their day."""
    return spell(seconds) if seconds > 0 else "under a day"


def headline(kpi: IterationKpi) -> str:
    """How it ended, in a sentence."""
    by_state = {
        "in progress": f"Still in progress, at stage {kpi.stage}.",
        "unfinished": f"A newer iteration was begun before this one had ended; it was at stage {kpi.stage}.",
        "not trained": "Nothing was trained: the evidence did not suffice.",
        "stopped": "The training stopped itself, and nothing was evaluated.",
        "refused": "The candidate was refused, and the champion stays.",
        "held": "The candidate passed the gate and waits for a person.",
        "registered": "The candidate passed the gate and is registered; this deployment routes nothing to it.",
        "in rollout": "The candidate passed the gate and is being rolled out.",
        "promoted": f"The candidate was promoted{f' as version {kpi.version}' if kpi.version else ''}.",
        "rolled back": "The candidate was rolled back, and the champion before it serves.",
        "aborted": "A person ended the rollout of the candidate.",
        "superseded": "A newer candidate took the place of this one.",
        "unreadable": "Its records cannot be read.",
    }
    return by_state[kpi.state]


def cost_table(kpi: IterationKpi) -> PageTable:
    rows = [
        (
            line.name,
            UNKNOWN if line.usd is None else str(line.usd),
            UNKNOWN if line.device_hours is None else f"{line.device_hours:,.3f}",
            "; ".join(dict.fromkeys(why for why in (line.why, line.why_hours) if why)),
        )
        for line in kpi.costs
    ]
    rows.append(("together", usd_text(kpi.cost), hours_text(kpi.cost), ""))
    return PageTable(("what", "USD", "device hours", "note"), rows, (1, 2))


def when(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
