"""The plots that stages show to people: one palette, one way to a PNG, and a module of drawings for each stage.

Colours are of one colour-blind-safe set (Okabe and Ito). matplotlib is imported inside, so definitions load fast. The
evaluation draws its own (evals/report.py) with what is here. Refuses to know where a picture is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

BLUE, ORANGE, GREEN, AMBER = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PINK, YELLOW, BLACK = "#56B4E9", "#CC79A7", "#F0E442", "#000000"
GREY, DARK_GREY, LIGHT_GREY = "#999999", "#555555", "#CCCCCC"


def axes_png(draw: Callable[[Any], None]) -> bytes:
    """PNG of one pair of axes."""

    def alone(figure: Any) -> None:
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)

    return figure_png(alone)


def words_png(text: str) -> bytes:
    """PNG of a sentence, where there is nothing to draw."""
    return figure_png(lambda figure: figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=10), 5, 1)


def figure_png(draw: Callable[[Any], Any], width: float = 7, height: float = 3.6, dpi: int = 110) -> bytes:
    """PNG of a figure of that size in inches; the same bytes for the same drawing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    draw(figure)
    out = BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
