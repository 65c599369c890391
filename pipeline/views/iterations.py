"""The plot of the key figures by iteration: quality of champion and candidate, and device hours."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pipeline.views import BLUE, DARK_GREY, ORANGE, Plot, words_plot


class IterationBar(NamedTuple):
    """One iteration. `champion` and `candidate`: share of right answers with the ends of its interval, or None."""

    name: str
    champion: tuple[float, float, float] | None
    candidate: tuple[float, float, float] | None
    device_hours: float


def quality_and_cost(bars: Sequence[IterationBar]) -> Plot:
    """Above, both models on the target suite with 95% intervals; below, the device hours that are on record."""
    if not bars:
        return words_plot("No iteration yet.")

    def draw(figure: Any) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", alpha=0.3)
            axes.set_axisbelow(True)
        for label, colour, shift in (("champion", BLUE, -0.08), ("candidate", ORANGE, 0.08)):
            arms = [(place, bar.champion if label == "champion" else bar.candidate) for place, bar in enumerate(bars)]
            measured = [(place + shift, arm) for place, arm in arms if arm is not None]
            if measured:
                values = [100 * arm[0] for _, arm in measured]
                reach = [[100 * abs(arm[0] - arm[end]) for _, arm in measured] for end in (1, 2)]
                above.errorbar(
                    [at for at, _ in measured], values, yerr=reach, color=colour, fmt="o", capsize=3, label=label
                )
        if above.has_data():
            figure.legend(frameon=False, fontsize="small", ncols=2, loc="outside lower center")
        above.set(ylabel="right answers, %", title="Champion and candidate on the target suite, 95% intervals")
        below.bar(range(len(bars)), [bar.device_hours for bar in bars], color=DARK_GREY, width=0.5)
        below.set(ylabel="device hours", xlabel="iteration, the oldest first")
        below.set_xticks(range(len(bars)), [bar.name for bar in bars], rotation=0 if len(bars) <= 8 else 90, fontsize=8)

    return Plot(draw, 8, 4.6)
