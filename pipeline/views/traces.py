"""The plots of the traces stage: where the rows went, over all gates and day by day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.traces.records import DayReport, total
from pipeline.views import AMBER, BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, YELLOW, axes_png

REASONS = (ORANGE, BLUE, AMBER, PINK, SKY, YELLOW, BLACK, GREY)


def funnel(seen: int, rejected: Mapping[str, int], admitted: int) -> bytes:
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

    return axes_png(draw)


def reasons_over_time(days: Sequence[DayReport]) -> bytes:
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

    return axes_png(draw)
