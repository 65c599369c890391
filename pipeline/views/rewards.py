"""Plots of labels and of the reward model."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.rewards.records import ABSENT, Agreement, ComponentSummary
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.views import BLUE, DARK_GREY, GREEN, GREY, ORANGE, Plot, axes_plot, words_plot

ACROSS = 4
SHOWN = 12
"""Reasons with a bar of their own; the others share one."""


def reward_distribution(histogram: Sequence[int], mean: float) -> Plot:
    def draw(axes: Any) -> None:
        width = 1 / len(histogram)
        axes.bar([(i + 0.5) * width for i in range(len(histogram))], histogram, width=width * 0.92, color=BLUE)
        axes.axvline(mean, color=ORANGE, linestyle="--")
        axes.set(xlabel="final_reward", ylabel="rows", title=f"Rewards of the labelled rows: mean {mean:.2f}")
        axes.yaxis.set_major_locator(_whole_numbers())

    return axes_plot(draw)


def component_histograms(components: Mapping[str, ComponentSummary]) -> Plot:
    """A small histogram for each component, with its mean and the numbers of its values and failures."""
    drawn = {name: each for name, each in components.items() if each.count or _failed(each)}
    if not drawn:
        return words_plot("No component has spoken on any row.")
    across = min(ACROSS, len(drawn))
    down = -(-len(drawn) // across)

    def draw(figure: Any) -> None:
        panels = list(figure.subplots(down, across, squeeze=False, sharex=True).flat)
        for axes, (name, each) in zip(panels, drawn.items(), strict=False):
            _histogram(axes, name, each)
        for empty in panels[len(drawn) :]:
            empty.set_axis_off()
        figure.supxlabel("value", fontsize=9)
        figure.supylabel("rows", fontsize=9)

    return Plot(draw, max(4.2, 2.4 * across), 0.5 + 1.9 * down)


def agreement_matrix(agreement: Sequence[Agreement]) -> Plot:
    """Below the diagonal how often two components are on the same side of 0.5, above it their rank correlation."""
    names = list(dict.fromkeys(name for pair in agreement for name in (pair.first, pair.second)))
    if not names:
        return words_plot("No two components speak on enough rows to be compared.")
    at = {name: place for place, name in enumerate(names)}

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        cells: dict[tuple[int, int], tuple[float | None, str]] = {}
        for pair in agreement:
            low, high = sorted((at[pair.first], at[pair.second]))
            agree, rho = pair.agree.value, pair.rank_correlation.value
            # Both on one scale: no better than chance in the middle. A share is stretched, a correlation is not.
            cells[high, low] = (None if agree is None else 2 * agree - 1, "?" if agree is None else f"{agree:.0%}")
            cells[low, high] = (rho, "?" if rho is None else f"{rho:+.2f}")
        grid = [[cells.get((row, column), (None, ""))[0] for column in at.values()] for row in at.values()]
        shown = [[float("nan") if value is None else value for value in row] for row in grid]
        axes.imshow(shown, cmap="PuOr_r", vmin=-1, vmax=1, aspect="auto")
        for (row, column), (value, text) in cells.items():
            dark = value is not None and abs(value) > 0.65
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_xticks([place - 0.5 for place in range(1, len(names))], minor=True)
        axes.set_yticks([place - 0.5 for place in range(1, len(names))], minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(
            "below the diagonal: share on the same side of 0.5\nabove it: rank correlation (?: unknown)", fontsize=9
        )

    return Plot(draw, max(4.4, 1.8 + 0.62 * len(names)), max(2.4, 1.5 + 0.38 * len(names)))


def coverage(labelled: int, unlabelled: Mapping[str, int]) -> Plot:
    rows = labelled + sum(unlabelled.values())
    if not rows:
        return words_plot("There is no row to label.")
    reasons = sorted(unlabelled.items(), key=lambda each: (-each[1], each[0]))
    bars = [("labelled", labelled), *reasons[:SHOWN]]
    if len(reasons) > SHOWN:
        bars.append((f"{len(reasons) - SHOWN} other reasons", sum(count for _, count in reasons[SHOWN:])))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        counts = [count for _, count in bars]
        axes.barh(range(len(bars)), counts, color=[GREEN] + [ORANGE] * (len(bars) - 1), height=0.7)
        for place, count in enumerate(counts):
            share = count / rows
            shown = "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"
            axes.text(count, place, f" {count:,} ({shown})", va="center", fontsize=8)
        axes.set_yticks(
            range(len(bars)), [name if len(name) <= 40 else f"{name[:39]}…" for name, _ in bars], fontsize=8
        )
        axes.invert_yaxis()
        axes.set_xlim(0, 1.28 * max(counts))
        axes.xaxis.set_major_locator(_whole_numbers())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.tick_params(axis="x", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("rows", fontsize=9)
        axes.set_title("Labelled, and why not", fontsize=10)

    return Plot(draw, 7, 1.1 + 0.32 * len(bars))


def calibration(report: RewardModelReport) -> Plot:
    """Mean score against the share of thumbs up of held-out users, for each tenth of [0, 1]; areas are counts."""
    if not report.calibration:
        return words_plot("No thumb of a held-out user was scored.")

    def draw(axes: Any) -> None:
        whole = sum(each.n for each in report.calibration)
        axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        sizes = [20 + 400 * each.n / whole for each in report.calibration]
        axes.scatter([b.mean_score for b in report.calibration], [b.up for b in report.calibration], sizes, color=BLUE)
        for each in report.calibration:
            axes.annotate(f"{each.n}", (each.mean_score, each.up), fontsize=7, color=DARK_GREY)
        title = f"Calibration on {whole:,} thumbs of held-out users (error {report.calibration_error:.3f})"
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="score", ylabel="share of thumbs up", title=title)

    return axes_plot(draw)


def probes(report: RewardModelReport) -> Plot:
    """The share of each probe's pairs that are ordered right, with its interval; one half is a coin."""
    drawn = [each for each in report.probes if each.ordered_right.value is not None]
    if not drawn:
        return words_plot("No probe has made a pair.")

    def draw(axes: Any) -> None:
        for at, each in enumerate(reversed(drawn)):
            e = each.ordered_right
            assert e.value is not None and e.low is not None and e.high is not None
            colour = GREEN if each.passes else ORANGE
            axes.errorbar([e.value], [at], xerr=[[e.value - e.low], [e.high - e.value]], fmt="o", color=colour)
        axes.axvline(0.5, color=GREY, linestyle="--", linewidth=1)
        axes.set_yticks(range(len(drawn)), [f"{each.name} (n={each.ordered_right.n})" for each in reversed(drawn)])
        axes.set(xlim=(0, 1.02), ylim=(-0.6, len(drawn) - 0.4), xlabel="answer scored over its violating twin")
        axes.set_title("Probes: 95% intervals")

    return axes_plot(draw)


def _histogram(axes: Any, name: str, each: ComponentSummary) -> None:
    width = 1 / len(each.histogram)
    axes.bar(
        [(bar + 0.5) * width for bar in range(len(each.histogram))], each.histogram, width=width * 0.92, color=BLUE
    )
    mean = "never speaks" if each.mean is None else f"mean {each.mean:.2f}"
    if each.mean is not None:
        axes.axvline(each.mean, color=ORANGE, linestyle="--", linewidth=1.2)
    failed = f", {_compact(_failed(each))} failed" if _failed(each) else ""
    axes.set_title(f"{name}\n{mean}, n={_compact(each.count)}{failed}", fontsize=8, loc="left")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_ylim(0, 1.06 * max(1, *each.histogram))
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.yaxis.set_major_formatter(lambda value, _: _compact(value))
    axes.tick_params(labelsize=7, labelbottom=True)
    axes.spines[["top", "right"]].set_visible(False)


def _failed(each: ComponentSummary) -> int:
    return sum(count for reason, count in each.missing.items() if reason != ABSENT)


def _compact(count: float) -> str:
    for least, size, letter in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if count >= least:
            return f"{count / size:.{1 if count < 10 * size else 0}f}".removesuffix(".0") + letter
    return f"{count:,.0f}"


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=4, integer=True)
