"""The report for people: a picture of the intervals and a Markdown table.

Owns how a comparison looks. Refuses to compute: every number is already in the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evals.comparison import Comparison, ConfidenceInterval, Difference, EvalReport
from evals.gate import GateVerdict
from pipeline.plots import BLACK, BLUE, DARK_GREY, LIGHT_GREY, ORANGE, figure_png

if TYPE_CHECKING:  # matplotlib is slow to import and only drawing needs it
    from matplotlib.axes import Axes

BEFORE, AFTER, NEUTRAL = BLUE, ORANGE, DARK_GREY


def table(report: EvalReport, verdict: GateVerdict | None = None) -> str:
    """The report as Markdown: the verdict if there is one, the gated metrics, then the slices."""
    lines = [f"**{verdict.verdict}**", "", *(f"- {reason}" for reason in verdict.reasons), ""] if verdict else []
    compared = report.measurement.comparison
    if compared is None:
        return "\n".join([*lines, "No comparison:", "", *(f"- {problem}" for problem in report.measurement.problems)])
    margin = report.section.guard_margin
    rates = f"{_interval(compared.champion)} | {_interval(compared.candidate)} | {_change(compared.difference)}"
    lines += [
        f"{compared.items} items in {compared.clusters} clusters, {compared.samples_per_item} samples of each; "
        f"95% intervals. Ungraded samples: champion {compared.ungraded_champion}, "
        f"candidate {compared.ungraded_candidate}.",
        "",
        "| metric | champion | candidate | difference | required |",
        "|---|---|---|---|---|",
        f"| accuracy | {rates} | lower bound {compared.difference.lower:+z.1%} > 0 |",
    ]
    for guard in compared.guards:
        required = f"upper bound {guard.difference.upper:+z.1%} < {margin:+z.1%}"
        rates = f"{guard.champion:.1%} | {guard.candidate:.1%} | {_change(guard.difference)}"
        lines.append(f"| {guard.name} | {rates} | {required} |")
    lines += [
        "",
        "Slices are for reading, never for gating (p-values adjusted by Holm).",
        "",
        "| slice | items | champion | candidate | difference | p |",
        "|---|---|---|---|---|---|",
    ]
    for row in compared.slices:
        rates = f"{row.champion:.1%} | {row.candidate:.1%} | {_change(row.difference)}"
        p = f"{row.p_holm:.3f}" if row.p_holm >= 0.001 else "< 0.001"
        lines.append(f"| {row.name} | {row.items} | {rates} | {p} |")
    return "\n".join(lines)


def picture(report: EvalReport) -> bytes:
    """PNG: accuracy of both models, and the paired differences with the line that each had to clear."""
    return figure_png(lambda figure: _draw(figure, report), 8.6, 3.4, dpi=90)


def _draw(figure: Any, report: EvalReport) -> None:
    compared = report.measurement.comparison
    if compared is None:
        text = "No comparison\n" + "\n".join(report.measurement.problems)
        figure.text(0.5, 0.5, text, ha="center", va="center", color=NEUTRAL, wrap=True)
    else:
        left, right = figure.subplots(1, 2, width_ratios=(3, 4))
        _draw_accuracy(left, compared)
        _draw_differences(right, compared, report.section.guard_margin)
        samples = f"{compared.items} items, {compared.samples_per_item} samples of each"
        figure.suptitle(f"Candidate against champion: {samples}, 95% intervals", fontsize=10, color=NEUTRAL)


def _draw_accuracy(axes: Axes, comparison: Comparison) -> None:
    _point(axes, 0, comparison.champion, BEFORE, "o", ".1f")
    _point(axes, 1, comparison.candidate, AFTER, "s", ".1f")
    _finish(axes, ["champion", "candidate"], "accuracy (%)")


def _draw_differences(axes: Axes, comparison: Comparison, margin: float) -> None:
    rows = [("accuracy\nmust lie right of", comparison.difference, 0.0)]
    rows += [(f"{guard.name}\nmust lie left of", guard.difference, margin) for guard in comparison.guards]
    axes.axvline(0, color=LIGHT_GREY, linewidth=1, zorder=0)
    for row, (_, entry, line) in enumerate(rows):
        axes.plot([100 * line] * 2, [row - 0.35, row + 0.35], color=BLACK, linestyle="--", linewidth=1.3, zorder=1)
        _point(axes, row, entry, AFTER if row == 0 else NEUTRAL, "D", "+z.1f")
    names = [f"{name} {100 * line:g}" for name, _, line in rows]
    _finish(axes, names, "candidate minus champion (points; thick: the gate's one-sided bounds)")


def _point(axes: Axes, row: int, entry: ConfidenceInterval | Difference, colour: str, marker: str, style: str) -> None:
    value, low, high = 100 * entry.value, 100 * entry.low, 100 * entry.high
    width = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar([value], [row], xerr=width, color=colour, marker=marker, capsize=4, linewidth=1.5)
    if isinstance(entry, Difference):
        gated = [100 * entry.lower, 100 * entry.upper]
        axes.plot(gated, [row, row], color=colour, linewidth=4, solid_capstyle="butt")
    text = f"{value:{style}} [{low:{style}}, {high:{style}}]"
    axes.annotate(
        text,
        (value, row),
        (0, 11),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )


def _finish(axes: Axes, names: list[str], label: str) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.7)
    axes.set_xlabel(label, fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.3)


def _interval(entry: ConfidenceInterval) -> str:
    return f"{entry.value:.1%} [{entry.low:.1%}, {entry.high:.1%}]"


def _change(entry: ConfidenceInterval | Difference) -> str:
    return f"{entry.value:+z.1%} [{entry.low:+z.1%}, {entry.high:+z.1%}]"
