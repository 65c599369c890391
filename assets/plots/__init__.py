"""The plots that assets show in Dagster and log to MLflow: PNG bytes in, and Markdown around them.

Colours are of one colour-blind-safe set (Okabe-Ito). matplotlib is imported inside, so definitions load fast.
"""

import base64
import html
import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import dagster as dg

from pipeline.traces.records import DayReport, total

REASONS = ("#D55E00", "#0072B2", "#E69F00", "#CC79A7", "#56B4E9", "#F0E442", "#000000", "#999999")
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"


def shown(png: bytes, alt: str) -> dg.MarkdownMetadataValue:
    """A picture as Dagster metadata."""
    return dg.MetadataValue.md(f"![{alt}](data:image/png;base64,{base64.b64encode(png).decode()})")


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> dg.MarkdownMetadataValue:
    """A table as Dagster metadata."""
    lines = [headers, *rows]
    markdown_rows = ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]
    return dg.MetadataValue.md("\n".join([markdown_rows[0], "|" + " --- |" * len(headers), *markdown_rows[1:]]))


def _cell(value: Any) -> str:
    """A value as it is: whatever of it could be Markdown, HTML or the end of a cell is escaped, for users wrote it."""
    text = " ".join(str(value).split())
    return re.sub(r"([\\`*_{}\[\]()#+!|~<>])", r"\\\1", html.escape(text, quote=False)) if text else ""


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

    return png(draw)


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

    return png(draw)


def reward_distribution(histogram: Sequence[int], mean: float) -> bytes:
    """Histogram of `final_reward` over equal bins of [0, 1]."""

    def draw(axes: Any) -> None:
        width = 1 / len(histogram)
        axes.bar([(i + 0.5) * width for i in range(len(histogram))], histogram, width=width * 0.92, color=BLUE)
        axes.axvline(mean, color=ORANGE, linestyle="--", label=f"mean {mean:.2f}")
        axes.set(xlabel="final_reward", ylabel="traces", title="Rewards of the labelled traces")
        axes.legend(frameon=False)

    return png(draw)


def png(draw: Callable[[Any], None]) -> bytes:
    """PNG of one pair of axes."""

    def alone(figure: Any) -> None:
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)

    return figure_png(alone)


def figure_png(draw: Callable[[Any], None], width: float = 7, height: float = 3.6) -> bytes:
    """PNG of a figure of that size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    draw(figure)
    out = BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
