"""Plots of stages and rollouts, in Okabe and Ito's colour-blind safe palette. Drawing one imports matplotlib."""

from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

BLUE, ORANGE, GREEN, AMBER = "#0072B2", "#D55E00", "#009E73", "#E69F00"
BLACK, GREY, DARK_GREY, LIGHT_GREY = "#000000", "#999999", "#555555", "#CCCCCC"


class Plot(NamedTuple):
    """A drawing on a figure of a size in inches; its files are reproducible."""

    draw: Callable[[Any], Any]
    width: float = 7
    height: float = 3.6
    dpi: int = 110

    def png(self) -> bytes:
        return self._file("png", {"Software": None})

    def svg(self) -> bytes:
        from matplotlib import rc_context

        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "plot"}):
            return self._file("svg", {"Date": None, "Creator": None})

    def _file(self, kind: str, metadata: dict[str, None]) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(self.width, self.height), dpi=self.dpi, layout="constrained")
        self.draw(figure)
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        out = BytesIO()
        figure.savefig(out, format=kind, metadata=metadata)
        return out.getvalue()


def text_plot(text: str) -> Plot:
    """What stands in for a plot of nothing."""
    return Plot(lambda figure: figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=10), 5, 1)
