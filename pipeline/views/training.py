"""Plots of a training: progress, health, and the time of its steps. Rows are those of `TrainingResult.metrics`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.training.result import CAUSES, Goodput, HealthFinding
from pipeline.views import AMBER, BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, Plot, words_plot

Rows = Sequence[Mapping[str, float]]
Points = tuple[list[float], list[float]]

SPENT = (("generate", BLUE), ("reward", AMBER), ("logprobs", SKY), ("update", GREEN), ("other", GREY))
"""Parts of a step, from the bottom up; `other` is the rest."""
VERDICTS = {"PASS": GREEN, "HOLD": AMBER, "STOP": ORANGE}
CAUSE_COLOURS = dict(zip(CAUSES, (SKY, AMBER, BLUE, ORANGE, GREY, PINK), strict=True))
RUNNING = 7
"""Steps of a running mean."""
MAX_BARS = 120
"""Bars in a picture; more steps than that share them."""


class PlotLine(NamedTuple):
    """A metric of a panel: held-out values as joined dots, those of steps as a running mean over faint raw values."""

    key: str
    label: str
    colour: str


class PlotPanel(NamedTuple):
    title: str
    unit: str
    lines: tuple[PlotLine, ...]


STEP, HELD_OUT = BLUE, BLACK
PROGRESS = (
    PlotLine("reward", "reward", BLUE),
    PlotLine("accuracy", "accuracy", ORANGE),
    PlotLine("rewards/accuracies", "pairs ranked right", GREEN),
    PlotLine("held_out/accuracy", "held-out accuracy", HELD_OUT),
    PlotLine("held_out/second_score", "second scorer", PINK),
)
HEALTH = (
    PlotPanel(
        "KL to the base", "nats a token", (PlotLine("kl", "step", STEP), PlotLine("held_out/kl", "held out", HELD_OUT))
    ),
    PlotPanel("entropy", "nats a token", (PlotLine("entropy", "step", STEP),)),
    PlotPanel(
        "completion length",
        "tokens",
        (PlotLine("completions/mean_length", "step", STEP), PlotLine("held_out/length", "held out", HELD_OUT)),
    ),
    PlotPanel("gradient norm", "before clipping", (PlotLine("grad_norm", "step", STEP),)),
    PlotPanel("flat groups", "share", (PlotLine("frac_reward_zero_std", "step", STEP),)),
    PlotPanel(
        "truncated",
        "share",
        (PlotLine("completions/clipped_ratio", "step", STEP), PlotLine("held_out/truncated", "held out", HELD_OUT)),
    ),
    PlotPanel("margin of the pairs", "nats", (PlotLine("rewards/margins", "step", STEP),)),
    PlotPanel("distinct bigrams", "share", (PlotLine("held_out/distinct_2", "held out", HELD_OUT),)),
)
MAX_PANELS = 6


def training_curve(metrics: Rows) -> Plot:
    drawn = [line for line in PROGRESS if _points(metrics, line.key)[0]]
    if not drawn:
        return words_plot("No step has measured a reward or an accuracy.")

    values = [value for line in drawn for value in _points(metrics, line.key)[1]]
    limits = min(0.0, 1.05 * min(values)), max(1.02, 1.05 * max(values))

    def draw(figure: Any) -> None:
        axes = _axes(figure.subplots())
        for line in drawn:
            _plot(axes, line, _points(metrics, line.key))
        axes.set(xlabel="optimiser step", ylabel="share, or mean reward", ylim=limits)
        axes.set_title("Progress: fresh completions of each step, and held-out prompts", fontsize=10)
        figure.legend(frameon=False, fontsize=8, ncols=len(drawn), loc="outside lower center")

    return Plot(draw)


def health_panels(metrics: Rows, findings: Sequence[HealthFinding] = ()) -> Plot:
    """Small multiples of the sentinel's metrics; dashed lines at its findings."""
    panels = [panel for panel in HEALTH if any(_points(metrics, line.key)[0] for line in panel.lines)][:MAX_PANELS]
    if not panels:
        return words_plot("No step has measured its health.")
    across = min(3, len(panels))
    down = -(-len(panels) // across)

    def draw(figure: Any) -> None:
        grid = list(figure.subplots(down, across, squeeze=False, sharex=True).flat)
        for axes, panel in zip(grid, panels, strict=False):
            _axes(axes)
            for line in panel.lines:
                _plot(axes, line, _points(metrics, line.key))
            axes.set_title(f"{panel.title} ({panel.unit})", fontsize=8, loc="left")
            axes.tick_params(labelsize=7, labelbottom=True)
            if all(value >= 0 for line in panel.lines for value in _points(metrics, line.key)[1]):
                axes.set_ylim(bottom=0.0)
            for finding in findings:
                axes.axvline(finding.step, color=VERDICTS[finding.verdict], linestyle="--", linewidth=1)
        for empty in grid[len(panels) :]:
            empty.set_axis_off()
        figure.supxlabel("optimiser step", fontsize=8)
        figure.legend(handles=_keys(findings), loc="outside upper right", ncols=4, frameon=False, fontsize=8)

    return Plot(draw, 7, 3.6)


def step_time(metrics: Rows) -> Plot:
    rows = [row for row in metrics if "seconds/step" in row]
    if not rows:
        return words_plot("No step has measured its time.")
    size = -(-len(rows) // MAX_BARS)
    bars = [rows[first : first + size] for first in range(0, len(rows), size)]
    parts = {name: [_mean([_part(row, name) for row in bar]) for bar in bars] for name, _ in SPENT}
    places = [_mean([row["step"] for row in bar]) for bar in bars]

    def draw(figure: Any) -> None:
        axes = _axes(figure.subplots())
        bottom = [0.0] * len(bars)
        for name, colour in SPENT:
            if any(parts[name]):
                label = f"{name} {sum(parts[name]) / sum(map(sum, parts.values())):.0%}"
                axes.bar(places, parts[name], bottom=bottom, width=size, color=colour, label=label)
                bottom = [below + part for below, part in zip(bottom, parts[name], strict=True)]
        joined = f", mean of {size}" if size > 1 else ""
        axes.set(xlabel=f"optimiser step{joined}", ylabel="seconds")
        axes.set_title("Where the time of a step went", fontsize=10)
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles[::-1], labels[::-1], frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5)
        )

    return Plot(draw)


def goodput_bar(goodput: Goodput) -> Plot:
    """The whole time of the training as one bar: productive steps, and lost time by cause."""
    if goodput.total_s <= 0:
        return words_plot("The training has no time on record.")
    spent = {"productive": goodput.productive_s, **goodput.badput_s}
    colours = {"productive": GREEN, **CAUSE_COLOURS}

    def draw(figure: Any) -> None:
        axes = _axes(figure.subplots())
        left = 0.0
        for name, seconds in spent.items():
            legend_label = f"{name}  {_duration(seconds)} ({seconds / goodput.total_s:.1%})"
            axes.barh([0], [seconds], left=left, color=colours.get(name, BLACK), label=legend_label, height=0.8)
            left += seconds
        axes.set_xlim(0, goodput.total_s)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        axes.set_xlabel("seconds, all attempts one after the other", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.set_title(f"Goodput {goodput.share:.1%} of {_duration(goodput.total_s)}", fontsize=10)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)

    return Plot(draw, 7, 2)


def _points(metrics: Rows, key: str) -> Points:
    points = [(row["step"], row[key]) for row in metrics if key in row and math.isfinite(row[key])]
    return [step for step, _ in points], [value for _, value in points]


def _plot(axes: Any, line: PlotLine, points: Points) -> None:
    steps, values = points
    if not steps:
        return
    if line.colour == HELD_OUT:
        axes.plot(steps, values, color=line.colour, marker="o", markersize=3, linewidth=1.2, label=line.label)
        return
    axes.plot(steps, values, color=line.colour, alpha=0.3, linewidth=1)
    running = [_mean(values[max(0, i - RUNNING + 1) : i + 1]) for i in range(len(values))]
    axes.plot(steps, running, color=line.colour, label=line.label)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _part(row: Mapping[str, float], name: str) -> float:
    if name != "other":
        return row.get(f"seconds/{name}", 0.0)
    named = sum(row.get(f"seconds/{part}", 0.0) for part, _ in SPENT)
    return max(0.0, row["seconds/step"] - named)


def _keys(findings: Sequence[HealthFinding]) -> list[Any]:
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], color=STEP, label="step"), Line2D([], [], color=HELD_OUT, marker="o", label="held out")]
    for verdict, colour in VERDICTS.items():
        if any(finding.verdict == verdict for finding in findings):
            label = "ended early" if verdict == "PASS" else verdict
            keys.append(Line2D([], [], color=colour, linestyle="--", label=label))
    return keys


def _axes(axes: Any) -> Any:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return axes


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
