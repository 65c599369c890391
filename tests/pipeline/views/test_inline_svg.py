"""Charts inside a page: well-formed, inert, and "" where there is nothing to draw."""

import math
from xml.etree import ElementTree

import pytest

from pipeline.views.inline_svg import (
    Axis,
    ChartPoint,
    ChartSeries,
    FunnelStep,
    IntervalRow,
    bar_chart,
    funnel_chart,
    interval_chart,
    line_chart,
    running_mean,
)

HOSTILE = '<script>&"'
SHARE = Axis(HOSTILE, is_share=True)


def parsed(chart: str) -> ElementTree.Element:
    """The chart as a browser reads it. Raises where it is no markup."""
    return ElementTree.fromstring(f"<div>{chart}</div>")


def texts(chart: str) -> list[str]:
    return [element.text or "" for element in parsed(chart).iter("text")]


def test_nothing_to_draw_is_an_empty_text() -> None:
    nowhere = ChartSeries("a", "c0", [ChartPoint(1, math.nan)])
    assert line_chart([], SHARE, SHARE) == line_chart([nowhere], SHARE, SHARE) == interval_chart([], "x") == ""
    assert funnel_chart([]) == bar_chart([0, 0], 0, 1, "x") == bar_chart([], 0, 1, "x") == ""


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [0.0, 1.0], [-3.0, 1e6], [1e-9, 2e-9], [0.2, math.nan, 0.4]])
def test_any_values_make_a_chart_within_its_box(values: list[float]) -> None:
    points = [ChartPoint(n, value, value - 0.1, value + 0.1) for n, value in enumerate(values)]
    for dots in (True, False):
        chart = line_chart(
            [ChartSeries(HOSTILE, "c0", points, dots=dots), ChartSeries("b", "c1", points)], SHARE, SHARE
        )
        assert not {"script"} & {element.tag for element in parsed(chart).iter()}
        numbers = [
            float(e.get(name, "0")) for e in parsed(chart).iter() for name in ("x", "x1", "x2", "cx") if e.get(name)
        ]
        assert all(0 <= number <= 720 for number in numbers) and "nan" not in chart


def test_a_share_ends_at_nought_and_at_one() -> None:
    chart = line_chart([ChartSeries("a", "c0", [ChartPoint(0, 0.0), ChartPoint(1, 1.0)])], Axis("step"), SHARE)
    shares = [float(text.rstrip("%")) for text in texts(chart) if text.endswith("%")]
    assert (min(shares), max(shares)) == (0.0, 100.0)


def test_an_interval_is_a_line_from_end_to_end() -> None:
    chart = interval_chart([IntervalRow(HOSTILE, 0.2, 0.1, 0.3, "20%", "c1")], "points", zero=True)
    (line,) = [each for each in parsed(chart).iter("line") if "stroke" in each.get("class", "")]
    (dot,) = parsed(chart).iter("circle")
    assert float(line.get("x1", "")) < float(dot.get("cx", "")) < float(line.get("x2", ""))
    assert {HOSTILE, "20%", "0%"} <= set(texts(chart))


def test_a_funnel_narrows_with_what_is_left() -> None:
    chart = funnel_chart([FunnelStep("traces", 1000, HOSTILE), FunnelStep("kept", 250), FunnelStep("labelled", 0)])
    widths = [float(bar.get("width", "")) for bar in parsed(chart).iter("rect")]
    assert widths[0] == pytest.approx(4 * widths[1], rel=0.01) and widths[2] == 1.0
    assert "1,000" in texts(chart) and HOSTILE in texts(chart)


def test_names_stand_where_their_values_do() -> None:
    points = [ChartPoint(0, 0.1), ChartPoint(1, 0.2)]
    chart = line_chart([ChartSeries("a", "c0", points, dots=True)], Axis("iteration", names=("first", "second")), SHARE)
    places = {e.text: float(e.get("x", "")) for e in parsed(chart).iter("text")}
    dots = [float(dot.get("cx", "")) for dot in parsed(chart).iter("circle")]
    assert dots == pytest.approx([places["first"], places["second"]], abs=0.1)


def test_a_running_mean_is_of_what_came_before() -> None:
    means = running_mean([ChartPoint(n, value) for n, value in enumerate([1.0, 3.0, 5.0])], width=2)
    assert [point.y for point in means] == [1.0, 2.0, 4.0]
