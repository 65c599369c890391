"""The plots of the reward model: calibration and probes. Where there is nothing to draw, the picture says so."""

from __future__ import annotations

from typing import Any

from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.views import BLUE, DARK_GREY, GREEN, GREY, ORANGE, axes_png, words_png


def calibration(report: RewardModelReport) -> bytes:
    """Mean score against the share of thumbs up of held-out users, for each tenth of [0, 1]; areas are counts."""
    if not report.calibration:
        return words_png("No thumb of a held-out user was scored.")

    def draw(axes: Any) -> None:
        whole = sum(each.n for each in report.calibration)
        axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        sizes = [20 + 400 * each.n / whole for each in report.calibration]
        axes.scatter([b.mean_score for b in report.calibration], [b.up for b in report.calibration], sizes, color=BLUE)
        for each in report.calibration:
            axes.annotate(f"{each.n}", (each.mean_score, each.up), fontsize=7, color=DARK_GREY)
        title = f"Calibration on {whole:,} thumbs of held-out users (error {report.calibration_error:.3f})"
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="score", ylabel="share of thumbs up", title=title)

    return axes_png(draw)


def probes(report: RewardModelReport) -> bytes:
    """The share of each probe's pairs that are ordered right, with its interval; one half is a coin."""
    drawn = [each for each in report.probes if each.ordered_right.value is not None]
    if not drawn:
        return words_png("No probe has made a pair.")

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

    return axes_png(draw)
