"""Charts as SVG inside a page: they take the page's colours, light or dark, and need no library and no file.

Colours are the classes `c0` to `c3` (champion, candidate, held out, accent), `axis` and `grid`, which the page's style
sheet paints; text is `currentColor`. Every text is escaped. Refuses to know what is drawn and where it is shown.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_Place = Callable[[float, float], tuple[float, float]]
"""Where a point of the chart lies on the page."""
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 720, 54, 16, 14, 40
TICKS = 5


class ChartPoint(NamedTuple):
    """A value, and its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class ChartSeries(NamedTuple):
    """`colour`: a class. `dots`: marks at the points; `line`: what joins them, `steps` at right angles."""

    name: str
    colour: str
    points: Sequence[ChartPoint]
    line: bool = True
    dots: bool = False
    steps: bool = False


class IntervalRow(NamedTuple):
    """One value with its interval, and the words beside it."""

    name: str
    value: float
    low: float
    high: float
    words: str
    colour: str


class FunnelStep(NamedTuple):
    """What is left after a step; `note` says what became of the rest."""

    name: str
    left: int
    note: str = ""


class Axis(NamedTuple):
    """`names`: of whole numbers on it, where they are no numbers for people."""

    label: str
    is_share: bool = False
    names: Sequence[str] = ()
    low: float | None = None
    high: float | None = None


def line_chart(series: Sequence[ChartSeries], across: Axis, up: Axis, height: int = 280) -> str:
    """Lines and dots with their intervals, and a legend below; "" without a point."""
    points = [point for each in series for point in each.points if math.isfinite(point.y)]
    if not points:
        return ""
    ys = [y for point in points for y in (point.y, point.low, point.high) if y is not None]
    x_low, x_high = _ends([point.x for point in points], across)
    y_low, y_high = _ends(ys, up)
    floor = height - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT),
            floor - (y - y_low) / (y_high - y_low) * (floor - TOP),
        )

    parts: list[str] = []
    for tick in _ticks(y_low, y_high):
        _, y = at(x_low, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 4, _figure(tick, up), "end"))
    for tick in range(len(across.names)) if across.names else _ticks(x_low, x_high):
        x, _ = at(tick, y_low)
        name = across.names[int(tick)] if across.names else _figure(tick, across)
        parts.append(_text(x, floor + 18, name, "middle"))
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 5, across.label, "middle"))
    for each in series:
        drawn = [point for point in each.points if math.isfinite(point.y)]
        parts.extend(_whiskers(each, drawn, at) if each.dots else [_band(each, drawn, at)])
        if each.line and len(drawn) > 1:
            parts.append(_path(each, [at(point.x, point.y) for point in drawn]))
        if each.dots:
            for point in drawn:
                x, y = at(point.x, point.y)
                parts.append(f'<circle class="fill {each.colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
    return _svg(parts, height, up.label) + _legend(series)


def interval_chart(rows: Sequence[IntervalRow], label: str, zero: bool = False) -> str:
    """A row for each value, all on one axis of shares; `zero` draws the line of no difference. "" without a row."""
    if not rows:
        return ""
    left, row_height = 150, 44
    height = TOP + row_height * len(rows) + BOTTOM
    ends = [end for row in rows for end in (row.low, row.high)] + ([0.0] if zero else [])
    low, high = _ends(ends, Axis(label, is_share=True))
    floor = height - BOTTOM

    def at(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - RIGHT - 10)

    parts: list[str] = []
    for tick in _ticks(low, high):
        parts.append(f'<line class="grid" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{TOP}" y2="{floor}"/>')
        parts.append(_text(at(tick), floor + 18, _figure(tick, Axis("", is_share=True)), "middle"))
    if zero:
        parts.append(f'<line class="axis" x1="{at(0):.1f}" x2="{at(0):.1f}" y1="{TOP}" y2="{floor}"/>')
    parts.append(_text((left + WIDTH) / 2, height - 5, label, "middle"))
    for number, row in enumerate(rows):
        y = TOP + row_height * (number + 0.62)
        parts.append(_text(left - 12, y + 4, row.name, "end"))
        parts.append(
            f'<line class="stroke {row.colour}" x1="{at(row.low):.1f}" x2="{at(row.high):.1f}" y1="{y:.1f}" '
            f'y2="{y:.1f}"/>'
        )
        parts.append(f'<circle class="fill {row.colour}" cx="{at(row.value):.1f}" cy="{y:.1f}" r="5"/>')
        middle = min(max(at(row.value), left + 90), WIDTH - RIGHT - 90)
        parts.append(_text(middle, y - 11, row.words, "middle", "strong"))
    return _svg(parts, height, label)


def funnel_chart(steps: Sequence[FunnelStep]) -> str:
    """A bar for each step, as long as what is left; "" without a step."""
    if not steps:
        return ""
    margin, row_height, widest = 110, 34, max(step.left for step in steps) or 1
    parts: list[str] = []
    for number, step in enumerate(steps):
        y = 6 + row_height * number
        width = step.left / widest * (WIDTH - margin - 250)
        parts.append(_text(margin - 12, y + 17, step.name, "end"))
        parts.append(
            f'<rect class="fill c1" x="{margin}" y="{y}" width="{max(width, 1):.1f}" height="24" rx="3" '
            f'opacity="{1 - 0.15 * number:.2f}"/>'
        )
        parts.append(_text(margin + width + 8, y + 17, f"{step.left:,}", "start", "strong"))
        parts.append(_text(WIDTH - 4, y + 17, step.note, "end", "note"))
    return _svg(parts, 8 + row_height * len(steps), "what is left after each step")


def bar_chart(counts: Sequence[int], low: float, high: float, label: str) -> str:
    """A histogram over equal bins from `low` to `high`; "" where all are empty."""
    if not any(counts):
        return ""
    height, floor, most = 150, 150 - BOTTOM, max(counts)
    size = (WIDTH - LEFT - RIGHT) / len(counts)
    parts = [
        f'<rect class="fill c1" x="{LEFT + size * n + 1:.1f}" y="{floor - count / most * (floor - TOP):.1f}" '
        f'width="{size - 2:.1f}" height="{count / most * (floor - TOP):.1f}"><title>{count:,}</title></rect>'
        for n, count in enumerate(counts)
    ]
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    for end in (low, (low + high) / 2, high):
        x = LEFT + (end - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        parts.append(_text(x, floor + 16, f"{end:g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 5, label, "middle"))
    return _svg(parts, height, label)


def running_mean(points: Sequence[ChartPoint], width: int = 7) -> list[ChartPoint]:
    """Each value with the `width - 1` before it, averaged."""
    values = [point.y for point in points]
    means = [sum(part) / len(part) for part in (values[max(0, n - width + 1) : n + 1] for n in range(len(values)))]
    return [ChartPoint(point.x, mean) for point, mean in zip(points, means, strict=True)]


def _ends(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """A little room on both sides, but that a share ends at 0 and 1 where its values are in between."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.5
    if axis.names:
        return -0.5, len(axis.names) - 0.5
    first, last = low - room, high + room
    if axis.is_share:
        first = max(first, 0.0) if low >= 0 else first
        last = min(last, 1.0) if high <= 1 else last
    return (first if axis.low is None else axis.low), (last if axis.high is None else axis.high)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers within."""
    raw = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _figure(value: float, axis: Axis) -> str:
    return f"{round(100 * value, 4):g}%" if axis.is_share else f"{round(value, 6):,g}"


def _path(each: ChartSeries, places: Sequence[tuple[float, float]]) -> str:
    drawn = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for x, y in places[1:]:
        drawn += f"H{x:.1f}V{y:.1f}" if each.steps else f"L{x:.1f} {y:.1f}"
    return f'<path class="stroke {each.colour}" d="{drawn}"/>'


def _whiskers(each: ChartSeries, points: Sequence[ChartPoint], at: _Place) -> list[str]:
    ends = [(at(p.x, p.low), at(p.x, p.high)) for p in points if p.low is not None and p.high is not None]
    return [
        f'<line class="stroke {each.colour}" x1="{low[0]:.1f}" x2="{low[0]:.1f}" y1="{low[1]:.1f}" y2="{high[1]:.1f}"/>'
        for low, high in ends
    ]


def _band(each: ChartSeries, points: Sequence[ChartPoint], at: _Place) -> str:
    """The intervals of a line, as one area."""
    bounded = [p for p in points if p.low is not None and p.high is not None]
    if len(bounded) < 2:
        return ""
    edge = [at(p.x, p.high or 0.0) for p in bounded] + [at(p.x, p.low or 0.0) for p in reversed(bounded)]
    return f'<polygon class="band {each.colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in edge)}"/>'


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _svg(parts: Sequence[str], height: int, label: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}">'
    return f"{head}{''.join(part for part in parts if part)}</svg>"


def _legend(series: Sequence[ChartSeries]) -> str:
    named = [each for each in series if each.name]
    if len(named) < 2:
        return ""
    keys = "".join(f'<span><i class="{each.colour}"></i>{html.escape(each.name)}</span>' for each in named)
    return f'<p class="legend">{keys}</p>'
