"""The picture of a decision: a dot for each check, in the colour and at the place of what was found."""

import io

import pytest
from matplotlib.figure import Figure

from benchmarks.selection import run
from benchmarks.selection_data import World
from pipeline.plots import GREEN, GREY, ORANGE
from pipeline.plots.selection import draw, evidence_plot
from pipeline.selection.choose import MethodDecision

WORLDS = {
    "grpo": World(prompts=400),
    "dpo": World(prompts=1500, verifiable=0.3, noise=0.0),
    "none": World(prompts=60, verifiable=0.3),
    "unknown": World(prompts=300, verifiable=0.0),
}


def drawn(decision: MethodDecision) -> Figure:
    figure = Figure(figsize=(8.4, 4.6), dpi=110, layout="constrained")
    draw(figure, decision)
    return figure


@pytest.fixture(params=WORLDS)
def decision(request: pytest.FixtureRequest) -> MethodDecision:
    return run(WORLDS[request.param], seed=1).decision


def test_each_check_has_a_dot_where_and_how_it_was_found(decision: MethodDecision) -> None:
    figure = drawn(decision)
    dots = {line.get_gid(): line for axes in figure.axes for line in axes.lines if line.get_gid()}
    assert dots.keys() == {check.key for check in decision.checks}
    for check in decision.checks:
        dot = dots[check.key]
        unknown = check.estimate.value is None
        assert dot.get_color() == (GREY if unknown else GREEN if check.holds else ORANGE)
        assert dot.get_xdata()[0] == (check.threshold if unknown else check.estimate.value)
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert [label.partition("\n")[0] for label in labels] == [
        *(check.name for check in decision.checks if check.key not in ("frontier", "pairs")),
        *(check.name for check in decision.checks if check.key in ("frontier", "pairs")),
    ]


def test_nothing_is_drawn_outside_the_picture(decision: MethodDecision) -> None:
    figure = drawn(decision)
    figure.savefig(io.BytesIO(), format="png")
    box = figure.bbox
    for axes in figure.axes:
        for text in (*axes.texts, *axes.get_yticklabels(), axes.xaxis.label):
            extent = text.get_window_extent()
            assert box.x0 <= extent.x0
            assert extent.x1 <= box.x1
            assert box.y0 <= extent.y0


def test_it_is_a_png_and_the_same_again() -> None:
    decision = run(WORLDS["grpo"], seed=1).decision
    assert evidence_plot(decision)[:8] == b"\x89PNG\r\n\x1a\n"
    assert evidence_plot(decision) == evidence_plot(decision)
