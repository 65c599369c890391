"""The report for people: a picture of the intervals and a Markdown table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from evals.gate import GateVerdict
from evals.measurements import (
    Comparison,
    ConfidenceInterval,
    Difference,
    EvalReport,
    Guard,
    JudgedMeasurement,
    Slice,
    SuiteMeasurement,
)
from pipeline.core.markdown import literal
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import SuiteSection
from pipeline.views import BLACK, BLUE, DARK_GREY, LIGHT_GREY, ORANGE, Plot

if TYPE_CHECKING:  # matplotlib is slow to import and only drawing needs it
    from matplotlib.axes import Axes

WORDS = {"score": "wrong answers", "pii": "personal data", "format": "not in the form asked for"}
"""A guard's name for people, where it is another."""
BEFORE, AFTER, NEUTRAL = BLUE, ORANGE, DARK_GREY


def table(report: EvalReport, verdict: GateVerdict | None = None) -> str:
    """The report as Markdown: the verdict if there is one, then each suite's gated metrics and slices."""
    lines = (
        [f"**{verdict.verdict}**", "", *(f"- {literal(reason)}" for reason in verdict.reasons), ""] if verdict else []
    )
    if report.problems:
        lines += ["No comparison:", "", *(f"- {literal(problem)}" for problem in report.problems), ""]
    for measured in report.measurements:
        lines += _suite(measured, report.section.suite(measured.suite), report.section)
    for judged in report.judged:
        lines += _judged_suite(judged, report.section)
    return "\n".join(lines).rstrip()


def _judged_suite(measured: JudgedMeasurement, section: Evaluation) -> list[str]:
    settings = section.judged_suite(measured.suite)
    lines = [f"### {measured.suite} ({settings.role}, answers to {settings.over}, judged)", ""]
    rate, loss = measured.win_rate, measured.loss
    if rate is None:
        return [*lines, "No win rate:", "", *(f"- {problem}" for problem in measured.problems), ""]
    required = [f"lower bound {0.5 + rate.controlled.lower:.1%} > 50%"] if section.improves(settings.role) else []
    if loss is not None:
        required.append(f"lower bound {0.5 - loss.difference.upper:.1%} > {0.5 - loss.margin:.1%}")
    return [
        *lines,
        f"{rate.pairs:,} pairs in {rate.clusters:,} clusters, judged by {measured.judge} in both orders, which "
        f"disagree in {rate.disagreement:.1%}; 95% intervals. The judge's liking for length is "
        f"{rate.length_effect:+.2f} (logit of a standard deviation).",
        "",
        "| candidate preferred | rate | required |",
        "|---|---|---|",
        f"| at equal lengths | {_rate(rate.controlled)} | {'; '.join(required)} |",
        f"| as judged | {_rate(rate.raw)} | |",
        "",
    ]


def _rate(entry: Difference) -> str:
    """A win rate, which is recorded less one half."""
    return f"{0.5 + entry.value:.1%} [{0.5 + entry.low:.1%}, {0.5 + entry.high:.1%}]"


def _suite(measured: SuiteMeasurement, settings: SuiteSection, section: Evaluation) -> list[str]:
    lines = [f"### {measured.suite} ({settings.role})", ""]
    compared = measured.comparison
    if compared is None:
        return [*lines, "No comparison:", "", *(f"- {problem}" for problem in measured.problems), ""]
    rates = f"{_interval(compared.champion)} | {_interval(compared.candidate)} | {_change(compared.difference)}"
    gain = f"lower bound {compared.difference.lower:+z.1%} > 0"
    lines += [
        f"{compared.items:,} items in {compared.clusters:,} clusters, {compared.samples_per_item} samples of each; "
        f"95% intervals. Ungraded samples: champion {compared.ungraded_champion}, "
        f"candidate {compared.ungraded_candidate}.",
        "",
        "| metric | champion | candidate | difference | required |",
        "|---|---|---|---|---|",
        f"| accuracy | {rates} | {gain if section.improves(settings.role) else ''} |",
    ]
    if settings.floor is not None:
        lines.append(f"| floor | | {_interval(compared.candidate)} | | lower end >= {settings.floor:.1%} |")
    for guard in compared.guards:
        lines.append(_guard(guard, settings))
    if cost := compared.cost:
        lines.append(f"| USD for 1,000 answers | {1000 * cost.champion:.3f} | {1000 * cost.candidate:.3f} | | |")
    for each in compared.pass_at:
        lines.append(f"| pass@{each.k} | {each.champion:.1%} | {each.candidate:.1%} | | |")
    if len(compared.slices) > 1:
        lines += [
            "",
            "Slices are for reading, never for gating (p-values adjusted by Holm).",
            "",
            "| slice | items | champion | candidate | difference | p |",
            "|---|---|---|---|---|---|",
            *map(_slice, compared.slices),
        ]
    return [*lines, ""]


def _guard(guard: Guard, settings: SuiteSection) -> str:
    rise = guard.difference
    what, bound = ("upper", rise.upper) if guard.rule == "safe" else ("lower", rise.lower)
    if guard.name == "length":
        change = f"{math.expm1(rise.value):+z.1%} [{math.expm1(rise.low):+z.1%}, {math.expm1(rise.high):+z.1%}]"
        required = f"{what} bound {math.expm1(bound):+z.1%} < {math.expm1(guard.margin):+z.1%}"
        rates = f"{guard.champion:.1f} tokens | {guard.candidate:.1f} tokens"
    else:
        change, required = _change(rise), f"{what} bound {bound:+z.1%} < {guard.margin:+z.1%}"
        rates = f"{guard.champion:.1%} | {guard.candidate:.1%}"
    return f"| {_words(guard)} | {rates} | {change} | {'' if settings.role == 'report' else required} |"


def _words(guard: Guard) -> str:
    """A guard's name for people."""
    return WORDS.get(guard.name, guard.name.replace("_", " "))


def _slice(row: Slice) -> str:
    rates = f"{row.champion:.1%} | {row.candidate:.1%} | {_change(row.difference)}"
    p = f"{row.p_holm:.3f}" if row.p_holm >= 0.001 else "< 0.001"
    return f"| {literal(row.name) or '(none)'} | {row.items:,} | {rates} | {p} |"


ROW_INCHES = 0.46
JUDGED_ROWS = 2
THICK = "(thick: bounds of the gate)"


def picture(report: EvalReport) -> Plot:
    """For each suite the score of both models, and the paired differences with the line that each had to clear."""
    rows = sum(1 + len(each.comparison.guards) for each in report.measurements if each.comparison)
    rows += sum(JUDGED_ROWS for each in report.judged if each.win_rate)
    return Plot(lambda figure: _draw(figure, report), 9.2, max(3.4, 1.6 + ROW_INCHES * rows), dpi=90)


def _draw(figure: Any, report: EvalReport) -> None:
    section = report.section
    compared = [(each.suite, each.comparison) for each in report.measurements if each.comparison is not None]
    judged = [each for each in report.judged if each.win_rate is not None]
    if not compared and not judged:
        every = (*report.measurements, *report.judged)
        problems = [*report.problems, *(f"{each.suite}: {why}" for each in every for why in each.problems)]
        text = "\n".join(["No comparison", *problems])
        figure.text(0.5, 0.5, text, ha="center", va="center", color=NEUTRAL, wrap=True)
        return
    heights = [1 + len(comparison.guards) for _, comparison in compared] + [JUDGED_ROWS] * len(judged)
    grid = figure.subplots(len(heights), 2, width_ratios=(3, 4), height_ratios=heights, squeeze=False)
    for (name, comparison), (left, right) in zip(compared, grid, strict=False):
        settings, last = section.suite(name), name == compared[-1][0]
        asked = f"{comparison.items:,} items, {comparison.samples_per_item} samples"
        left.set_title(f"{name} ({settings.role}): {asked}", fontsize=9, loc="left", color=NEUTRAL)
        _point(left, 0, comparison.champion, BEFORE, "o", ".1f")
        _point(left, 1, comparison.candidate, AFTER, "s", ".1f")
        _finish(left, ["champion", "candidate"], "score (%)" if last else "")
        below = f"candidate less champion (points, length in %)\n{THICK}"
        _draw_differences(right, comparison, section.improves(settings.role), below if last else "")
    for each, (left, right) in zip(judged, grid[len(compared) :], strict=True):
        below = f"candidate preferred, less 50% (points)\n{THICK}"
        _draw_judged(left, right, each, section, below if each is judged[-1] else "")
    figure.suptitle("Candidate against champion, 95% intervals", fontsize=10, color=NEUTRAL)


def _draw_judged(left: Axes, right: Axes, measured: JudgedMeasurement, section: Evaluation, label: str) -> None:
    """The win rates, less one half, beside what they are of."""
    rate, loss, settings = measured.win_rate, measured.loss, section.judged_suite(measured.suite)
    assert rate is not None
    left.axis("off")
    left.set_title(f"{measured.suite} ({settings.role}): judged", fontsize=9, loc="left", color=NEUTRAL)
    about = (
        f"{rate.pairs:,} pairs of answers to {settings.over}\njudged by {measured.judge} in both orders,\n"
        f"which disagree in {rate.disagreement:.1%}"
    )
    left.text(0, 0.5, about, fontsize=8, va="center", color=NEUTRAL, transform=left.transAxes)
    right.axvline(0, color=LIGHT_GREY, linewidth=1, zorder=0)
    must = [0.0] * section.improves(settings.role) + ([-loss.margin] if loss is not None else [])
    for line in must:
        _line(right, 0, line)
    _point(right, 0, rate.controlled, AFTER, "D", "+z.1f")
    _point(right, 1, rate.raw, NEUTRAL, "D", "+z.1f")
    wanted = f" must lie right of {100 * max(must):g}" if must else ""
    _finish(right, [f"at equal lengths{wanted}", "as judged"], label)


def _draw_differences(axes: Axes, comparison: Comparison, improves: bool, label: str) -> None:
    axes.axvline(0, color=LIGHT_GREY, linewidth=1, zorder=0)
    names = ["score must lie right of 0" if improves else "score"]
    _point(axes, 0, comparison.difference, AFTER, "D", "+z.1f")
    if improves:
        _line(axes, 0, 0.0)
    for row, guard in enumerate(comparison.guards, start=1):
        length = guard.name == "length"
        margin = math.expm1(guard.margin) if length else guard.margin
        _line(axes, row, margin)
        _point(axes, row, _percent(guard.difference) if length else guard.difference, NEUTRAL, "D", "+z.1f")
        end = "" if guard.rule == "safe" else ": lower end"
        names.append(f"{_words(guard)}{end} must lie left of {100 * margin:g}")
    _finish(axes, names, label)


def _percent(entry: Difference) -> Difference:
    """A difference of logarithms as a relative change."""
    return Difference(**{name: math.expm1(value) for name, value in entry.model_dump().items()})


def _line(axes: Axes, row: int, at: float) -> None:
    axes.plot([100 * at] * 2, [row - 0.35, row + 0.35], color=BLACK, linestyle="--", linewidth=1.3, zorder=1)


def _point(axes: Axes, row: int, entry: ConfidenceInterval | Difference, colour: str, marker: str, style: str) -> None:
    value, low, high = 100 * entry.value, 100 * entry.low, 100 * entry.high
    width = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar([value], [row], xerr=width, color=colour, marker=marker, capsize=4, linewidth=1.5)
    if isinstance(entry, Difference):
        gated = [100 * entry.lower, 100 * entry.upper]
        axes.plot(gated, [row, row], color=colour, linewidth=4, solid_capstyle="butt")
    axes.annotate(
        f"{value:{style}} [{low:{style}}, {high:{style}}]",
        (value, row),
        (0, 8),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )


def _finish(axes: Axes, names: list[str], label: str) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.8)
    axes.set_xlabel(label, fontsize=7)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.3)


def _interval(entry: ConfidenceInterval) -> str:
    return f"{entry.value:.1%} [{entry.low:.1%}, {entry.high:.1%}]"


def _change(entry: ConfidenceInterval | Difference) -> str:
    return f"{entry.value:+z.1%} [{entry.low:+z.1%}, {entry.high:+z.1%}]"
