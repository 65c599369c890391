"""Plots of the data of an iteration: where rows went, and the evidence on which the method was chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.recipe.methods import METHODS, titles
from pipeline.selection.checks import COUNTS, EvidenceCheck
from pipeline.selection.choose import MethodDecision
from pipeline.traces.records import DayReport, total
from pipeline.views import AMBER, BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, YELLOW, Plot, axes_plot

REASONS = (ORANGE, BLUE, AMBER, PINK, SKY, YELLOW, BLACK, GREY)
HOLDS, FAILS, UNKNOWN = ("o", GREEN, "holds"), ("X", ORANGE, "does not hold"), ("D", GREY, "unknown")


def funnel(seen: int, rejected: Mapping[str, int], admitted: int) -> Plot:
    """Bars from all that was seen, through each gate's rejections, to what was admitted."""

    def draw(axes: Any) -> None:
        names, counts = ["seen", *rejected, "admitted"], [seen, *rejected.values(), admitted]
        left, remaining = [0], seen
        for count in rejected.values():
            remaining -= count
            left.append(remaining)
        left.append(0)
        colours = [GREY, *[ORANGE] * len(rejected), GREEN]
        axes.barh(names, counts, left=left, color=colours)
        for row, (count, start) in enumerate(zip(counts, left, strict=True)):
            axes.text(start + count, row, f" {count:,}", va="center")
        axes.invert_yaxis()
        axes.set_xlim(0, seen * 1.12 or 1)
        axes.set_xlabel("rows of the source")
        axes.set_title("What the gates let through")

    return axes_plot(draw)


def reasons_over_time(days: Sequence[DayReport]) -> Plot:
    """Stacked bars per day: the admitted rows below, above them the rejected ones by reason."""

    def draw(axes: Any) -> None:
        names = [day.day for day in days]
        reasons = list(total(day.rejected for day in days))
        stacks = {"admitted": [day.admitted for day in days]}
        stacks |= {str(reason): [day.rejected.get(reason, 0) for day in days] for reason in reasons}
        bottom = [0] * len(days)
        for number, (name, counts) in enumerate(stacks.items()):
            colour = GREEN if number == 0 else REASONS[(number - 1) % len(REASONS)]
            hatch = "//" if number > len(REASONS) else None
            axes.bar(names, counts, bottom=bottom, color=colour, label=name, hatch=hatch)
            bottom = [below + count for below, count in zip(bottom, counts, strict=True)]
        axes.tick_params(axis="x", rotation=30 if len(days) <= 10 else 90)
        axes.set(ylabel="rows of the source", title="Rows by day: admitted, and why not")
        axes.legend(frameon=False, fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))

    return axes_plot(draw)


def evidence_plot(decision: MethodDecision) -> Plot:
    """Each piece of evidence with its interval and threshold: shares above, counts below."""
    return Plot(lambda figure: draw(figure, decision), 8.4, 4.6)


def draw(figure: Any, decision: MethodDecision) -> None:
    """The drawing itself. The shaded side of a threshold is where the evidence has to lie."""
    shares = [check for check in decision.checks if check.key not in COUNTS]
    counts = [check for check in decision.checks if check.key in COUNTS]
    above, below = figure.subplots(2, height_ratios=[len(shares), len(counts)])
    _panel(above, shares)
    _panel(below, counts)
    above.set_xlim(-0.02, 1)
    above.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    values = [value for check in counts for value in (check.estimate.value, check.threshold) if value]
    below.set_xscale("symlog", linthresh=1)
    below.set_xlim(-0.2, 4 * max([10.0, *values]))
    below.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    below.set_xlabel("counts (log scale)")
    verdict = "do not train now" if decision.method == "none" else f"train with {METHODS[decision.method].title}"
    forced = " (forced by the recipe)" if decision.forced else ""
    figure.suptitle(f"Evidence and thresholds: {verdict}{forced}", fontsize="medium", fontweight="bold")
    figure.legend(handles=_legend(), loc="outside lower center", ncols=5, frameon=False, fontsize="small")


def _panel(axes: Any, checks: list[EvidenceCheck]) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_yticks(range(len(checks)), [f"{check.name}\n({titles(check.needed_by)})" for check in checks])
    axes.set_ylim(len(checks) - 0.5, -0.5)
    axes.tick_params(labelsize="small")
    for row, check in enumerate(checks):
        edge = -1.0 if check.sign == "<=" else 1e12
        axes.fill_betweenx([row - 0.36, row + 0.36], check.threshold, edge, color=GREEN, alpha=0.1, linewidth=0)
        axes.plot([check.threshold] * 2, [row - 0.36, row + 0.36], color="black", linewidth=1.5)
        marker, colour, _ = UNKNOWN if check.estimate.value is None else HOLDS if check.holds else FAILS
        at = check.threshold if check.estimate.value is None else check.estimate.value
        if check.estimate.low is not None and check.estimate.high is not None and not check.exact:
            axes.plot(
                [check.estimate.low, check.estimate.high], [row, row], color=colour, linewidth=3, solid_capstyle="butt"
            )
        axes.plot(
            [at], [row], marker=marker, color=colour, markersize=9, linestyle="none", gid=check.key, clip_on=False
        )
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": "small"}
        axes.annotate(check.interval(), (1.03, row), **place)


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dots = [Line2D([], [], marker=m, color=c, linestyle="none", label=label) for m, c, label in (HOLDS, FAILS, UNKNOWN)]
    threshold = Line2D([], [], marker="|", color="black", markersize=12, linestyle="none", label="threshold")
    return [*dots, threshold, Patch(color=GREEN, alpha=0.15, label="where it has to lie")]
