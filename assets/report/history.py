"""What stands on the page of all iterations: what the loop has given, what that took, and how iterations ended."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from assets.kpi.records import CostLine, Kpi, total
from assets.report import charts
from assets.report.figures import KeyFigure, PageTable, hours_text, usd_text, waited_text


def history_sections(kpi: Kpi) -> dict[str, Any]:
    """By the names that the template has for them."""
    return {
        "figures": list(_figures(kpi)),
        "quality": Markup(charts.quality_over_iterations(kpi.iterations)),
        "bill": _bill(kpi),
        "unknown": [
            *(f"USD: {each}" for each in kpi.cost.unknown),
            *(f"device hours: {each}" for each in kpi.cost.unknown_hours),
        ],
        "rows": list(_rows(kpi)),
    }


def _figures(kpi: Kpi) -> Iterator[KeyFigure]:
    if kpi.champion_quality is not None:
        now = kpi.champion_quality
        name = f"champion now (version {kpi.champion_version})" if kpi.champion_version else "champion now (base model)"
        yield KeyFigure(name, f"{now.value:.1%}", f"right on {kpi.suite}, 95% {now.low:.1%} to {now.high:.1%}")
    if kpi.gain is not None:
        promoted = kpi.ended.get("promoted", 0)
        yield KeyFigure("gained", f"{100 * kpi.gain:+.1f} points", f"promoted candidates: {promoted}")
    yield KeyFigure("cost so far", usd_text(kpi.cost), hours_text(kpi.cost))
    usd, hours = kpi.cost.usd_for(kpi.gain), kpi.cost.hours_for(kpi.gain)
    if usd is not None and hours is not None:
        least, least_hours = ("≥ " if missing else "" for missing in (kpi.cost.unknown, kpi.cost.unknown_hours))
        yield KeyFigure("for each +0.01", f"{least}{usd} USD", f"{least_hours}{hours:,.3f} device hours")
    refused, taken_back = kpi.ended.get("refused", 0), kpi.ended.get("rolled back", 0)
    yield KeyFigure("not promoted", f"{refused} refused", f"{taken_back} rolled back")
    if kpi.goodput is not None:
        lost = f"interruptions: {kpi.preemptions}, steps lost: {kpi.lost_steps}"
        yield KeyFigure("training goodput", f"{kpi.goodput:.0%}", lost)
    if kpi.trace_to_promotion_s is not None:
        yield KeyFigure("newest trace to promotion", waited_text(kpi.trace_to_promotion_s), "median of the promoted")


def _bill(kpi: Kpi) -> PageTable:
    """By what was paid for, over all iterations."""
    by_name: defaultdict[str, list[CostLine]] = defaultdict(list)
    for each in kpi.iterations:
        for line in each.costs:
            by_name[line.name].append(line)
    rows: list[tuple[str, ...]] = []
    for name, lines in by_name.items():
        cost = total(tuple(lines))
        usd = "unknown" if all(line.usd is None for line in lines) else usd_text(cost)
        hours = "unknown" if all(line.device_hours is None for line in lines) else f"{cost.device_hours:,.3f}"
        rows.append((name, usd, hours))
    rows.append(("together", usd_text(kpi.cost), hours_text(kpi.cost)))
    return PageTable(("what", "USD", "device hours"), rows, (1, 2))


def _rows(kpi: Kpi) -> Iterator[dict[str, str]]:
    """A row for each iteration, the newest first."""
    for each in reversed(kpi.iterations):
        data, quality = each.data, each.quality
        usd = each.cost.usd_for(each.gain)
        yield {
            "iteration": each.iteration,
            "state": each.state,
            "detail": each.detail,
            "verdict": each.verdict,
            "method": each.method.upper() if each.method else "",
            "kept": "" if data.kept is None else f"{data.kept:.0%}",
            "coverage": "" if data.coverage is None else f"{data.coverage:.0%}",
            "quality": "" if quality is None else f"{quality.champion.value:.1%} → {quality.candidate.value:.1%}",
            "gain": "" if quality is None else f"{100 * quality.difference.value:+.1f}",
            "usd": usd_text(each.cost) if each.costs else "",
            "usd_for": "" if usd is None else f"{'≥ ' if each.cost.unknown else ''}{usd}",
            "hours": f"{'≥ ' if each.cost.unknown_hours else ''}{each.cost.device_hours:,.2f}" if each.costs else "",
        }
