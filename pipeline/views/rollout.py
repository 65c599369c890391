"""The plot of a rollout: what share of the traffic the canary had, and how both arms did, look by look."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pipeline.core.estimate import Estimate
from pipeline.rollout.picture import LookPoint
from pipeline.views import BLUE, DARK_GREY, LIGHT_GREY, ORANGE, figure_png, words_png

UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))


def rollout_over_time(points: Sequence[LookPoint], title: str) -> bytes:
    """Above, the share of right answers of both arms with 95% intervals, as the stage had them by then; below, the
    canary's weight. Time is since the first look."""
    if not points:
        return words_png("No look at this rollout yet.")
    elapsed = points[-1].at - points[0].at
    size, unit = next((each for each in UNITS if elapsed > 3 * each[0]), UNITS[-1])
    times = [(point.at - points[0].at) / size for point in points]

    def draw(figure: Any) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
        # A stage begins with no evidence: what joins two stages would be nobody's figure.
        for number, (_, stage) in enumerate(groupby(zip(times, points, strict=True), key=lambda each: each[1].weight)):
            at, looks = zip(*stage, strict=True)
            for name, colour, arm in (
                ("champion", BLUE, [look.champion for look in looks]),
                ("canary", ORANGE, [look.canary for look in looks]),
            ):
                _band(above, at, arm, colour, name if number == 0 else None)
        for before, time, point in zip(points, times[1:], points[1:], strict=False):
            if point.weight != before.weight:
                above.axvline(time, color=LIGHT_GREY, linewidth=0.8, zorder=0)
        above.set(ylabel="right of the graded", title=title)
        if above.has_data():
            above.legend(frameon=False, fontsize="small")
        below.step(times, [point.weight for point in points], where="post", color=DARK_GREY)
        below.set(ylabel="canary, %", xlabel=f"{unit} since the first look", ylim=(-5, 105))

    return figure_png(draw, 8, 4.5)


def _band(axes: Any, times: Sequence[float], arm: Sequence[Estimate], colour: str, name: str | None) -> None:
    """A line through the values, and their intervals; a look that graded nothing leaves a gap."""
    missing = float("nan")
    values, lows, highs = (
        [missing if each is None else each for each in column]
        for column in zip(*((each.value, each.low, each.high) for each in arm), strict=True)
    )
    axes.fill_between(times, lows, highs, color=colour, alpha=0.2, linewidth=0)
    axes.plot(times, values, color=colour, label=name, marker=".", markersize=3, linewidth=1.2)
