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
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        return self._file(lambda figure, out: FigureCanvasAgg(figure).print_png(out, metadata={"Software": None}))

    def svg(self) -> bytes:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        unnamed = {"Date": None, "Creator": None}
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "plot"}):
            return self._file(lambda figure, out: FigureCanvasSVG(figure).print_svg(out, metadata=unnamed))

    def _file(self, print_to: Callable[[Any, BytesIO], object]) -> bytes:
        """`print_to` draws once; `Figure.savefig` draws a figure with a layout twice, to the same bytes."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(self.width, self.height), dpi=self.dpi, layout="constrained")
        self.draw(figure)
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        out = BytesIO()
        print_to(figure, out)
        return out.getvalue()


def text_plot(text: str) -> Plot:
    """What stands in for a plot of nothing."""
    return Plot(lambda figure: figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=10), 5, 1)
