"""An iteration's gates, rewards and training, and quality and cost over all iterations, in plots; its decision and its
training in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.selection.choose import MethodDecision
from pipeline.training.result import HealthFinding, TrainingResult
from pipeline.views import AMBER, BLUE, DARK_GREY, GREEN, GREY, ORANGE, Plot, text_plot

VERDICTS = {"PASS": GREEN, "HOLD": AMBER, "STOP": ORANGE}
PANELS = {
    "reward and accuracy": (
        "reward", "accuracy", "rewards/accuracies", "held_out/accuracy", "held_out/second_score"
    ),
    "KL to the base, nats a token": ("kl", "held_out/kl"),
    "entropy, nats a token": ("entropy",),
    "completion length, tokens": ("completions/mean_length", "held_out/length"),
    "gradient norm before clipping": ("grad_norm",),
    "share of flat groups": ("frac_reward_zero_std",),
    "share of truncated completions": ("completions/clipped_ratio", "held_out/truncated"),
    "margin of the pairs, nats": ("rewards/margins",),
    "share of distinct bigrams": ("held_out/distinct_2",),
    "seconds a step": ("seconds/step", "seconds/generate", "seconds/reward", "seconds/logprobs", "seconds/update"),
}  # fmt: skip
"""Metrics of the steps by panel."""


class IterationBar(NamedTuple):
    """`champion` and `candidate`: share of right answers with the ends of its interval, or None."""

    name: str
    champion: tuple[float, float, float] | None
    candidate: tuple[float, float, float] | None
    device_hours: float


def funnel(seen: int, rejected: Mapping[str, int], admitted: int) -> Plot:
    """Bars from all that was seen, through each gate's rejections, to what was admitted."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        names, counts = ["seen", *rejected, "admitted"], [seen, *rejected.values(), admitted]
        left, remaining = [0], seen
        for count in rejected.values():
            remaining -= count
            left.append(remaining)
        left.append(0)
        axes.barh(names, counts, left=left, color=[GREY, *[ORANGE] * len(rejected), GREEN])
        for row, (count, start) in enumerate(zip(counts, left, strict=True)):
            axes.text(start + count, row, f" {count:,}", va="center")
        axes.invert_yaxis()
        axes.set(xlim=(0, seen * 1.12 or 1), xlabel="rows of the source", title="What the gates let through")

    return Plot(draw)


def reward_distribution(histogram: Sequence[int], mean: float) -> Plot:
    def draw(figure: Any) -> None:
        axes, width = figure.subplots(), 1 / len(histogram)
        axes.bar([(i + 0.5) * width for i in range(len(histogram))], histogram, width=width * 0.92, color=BLUE)
        axes.axvline(mean, color=ORANGE, linestyle="--")
        axes.set(xlabel="final_reward", ylabel="rows", title=f"Rewards of the labelled rows: mean {mean:.2f}")

    return Plot(draw)


def training_panels(metrics: Sequence[Mapping[str, float]], findings: Sequence[HealthFinding] = ()) -> Plot:
    """A panel for each group of metrics that was measured, by optimiser step; dashed lines at the sentinel's
    findings. `metrics`: those of `TrainingResult`."""
    drawn: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for title, keys in PANELS.items():
        for key in keys:
            if points := [(row["step"], row[key]) for row in metrics if math.isfinite(row.get(key, math.nan))]:
                drawn.setdefault(title, {})[key] = points
    if not drawn:
        return text_plot("No step has measured anything.")
    across = min(3, len(drawn))
    down = -(-len(drawn) // across)

    def draw(figure: Any) -> None:
        panels = list(figure.subplots(down, across, squeeze=False, sharex=True).flat)
        for axes, (title, lines) in zip(panels, drawn.items(), strict=False):
            for key, points in lines.items():
                mark = "o" if key.startswith("held_out/") or len(points) == 1 else ""
                axes.plot(*zip(*points, strict=True), label=key, marker=mark, markersize=3, linewidth=1)
            for finding in findings:
                axes.axvline(finding.step, color=VERDICTS[finding.verdict], linestyle="--", linewidth=1)
            axes.set_title(title, fontsize=8, loc="left")
            axes.tick_params(labelsize=7, labelbottom=True)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False, fontsize=6)
        for empty in panels[len(drawn) :]:
            empty.set_axis_off()
        figure.supxlabel("optimiser step", fontsize=8)

    return Plot(draw, 3.2 * across, 0.4 + 1.9 * down)


def quality_and_cost(bars: Sequence[IterationBar]) -> Plot:
    """Above, both models on the target suite with 95% intervals; below, the device hours that are on record."""
    if not bars:
        return text_plot("No iteration yet.")

    def draw(figure: Any) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        arms = (("champion", BLUE, -0.08, [bar.champion for bar in bars]),
                ("candidate", ORANGE, 0.08, [bar.candidate for bar in bars]))  # fmt: skip
        for label, colour, shift, shares in arms:
            if measured := [(place + shift, share) for place, share in enumerate(shares) if share is not None]:
                values = [100 * share[0] for _, share in measured]
                reach = [[100 * abs(share[0] - share[end]) for _, share in measured] for end in (1, 2)]
                places = [place for place, _ in measured]
                above.errorbar(places, values, yerr=reach, color=colour, fmt="o", capsize=3, label=label)
        if above.has_data():
            figure.legend(frameon=False, fontsize="small", ncols=2, loc="outside lower center")
        above.set(ylabel="right answers, %", title="Champion and candidate on the target suite, 95% intervals")
        below.bar(range(len(bars)), [bar.device_hours for bar in bars], color=DARK_GREY, width=0.5)
        below.set(ylabel="device hours", xlabel="iteration, the oldest first")
        below.set_xticks(range(len(bars)), [bar.name for bar in bars], rotation=0 if len(bars) <= 8 else 90, fontsize=8)

    return Plot(draw, 8, 4.6)


EVIDENCE = ("evidence", "found (95% interval)", "held against", "for", "holds")


def evidence_rows(decision: MethodDecision) -> list[tuple[str, ...]]:
    """What decided the method, below EVIDENCE."""
    return [
        (each.name, each.interval(), f"{each.sign} {each.figure(each.threshold)}", ", ".join(each.needed_by),
         "yes" if each.holds else "no")
        for each in decision.checks
    ]  # fmt: skip


def decision_sentence(decision: MethodDecision) -> str:
    name = f"{decision.method.upper()}{' (forced by the recipe)' if decision.forced else ''}"
    lacks = [f"{method.upper()} lacks {'; '.join(why)}" for method, why in decision.lacks.items()]
    because = decision.reasons if decision.method != "none" or decision.forced or not lacks else ()
    return ". ".join([f"{name}, because {'; '.join(because)}" if because else name, *lacks])


def training_sentence(trained: TrainingResult) -> str:
    steps, goodput = trained.checkpoint.step, trained.goodput
    planned = f" of {steps + trained.untrained_steps}" if trained.untrained_steps else ""
    times = f"{goodput.total_s:.0f} s, goodput {goodput.share:.0%}, {trained.attempts} attempt(s)"
    findings = [f"{each.verdict} at step {each.step}: {each.reason}" for each in trained.health.findings]
    held_out = [row["held_out/accuracy"] for row in trained.metrics if "held_out/accuracy" in row]
    progress = [f"held-out prompts {held_out[0]:.0%} → {held_out[-1]:.0%}"] if held_out else []
    steps_told, health = f"{steps}{planned} steps in {times}", f"health {trained.health.verdict}"
    return "; ".join([steps_told, health, *findings, *progress])
