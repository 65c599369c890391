"""The charts of the pages, from records. Each is a fragment of SVG, "" where there is nothing to draw."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from assets.kpi.records import DataFigures, IterationKpi
from evals.measurements import EvalReport
from pipeline.core.estimate import Estimate
from pipeline.rollout.picture import LookPoint
from pipeline.views.inline_svg import (
    Axis,
    ChartPoint,
    ChartSeries,
    FunnelStep,
    IntervalRow,
    funnel_chart,
    interval_chart,
    line_chart,
    running_mean,
)
from pipeline.views.training import PROGRESS

CHAMPION, CANDIDATE, HELD_OUT, ACCENT = "c0", "c1", "c2", "c3"
COLOURS = {"reward": ACCENT, "accuracy": CANDIDATE, "rewards/accuracies": CANDIDATE, "held_out/second_score": CHAMPION}
UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def data_funnel(data: DataFigures) -> str:
    """From the rows of the source to those that may be trained on."""
    steps = [
        FunnelStep("traces", data.seen or 0, "rows of the source"),
        FunnelStep("kept", data.admitted or 0, _left_out(data.seen, data.admitted, "refused by a gate")),
    ]
    if data.counted is not None and data.counted != data.admitted:
        lost = _left_out(data.admitted, data.counted, "not of this champion")
        steps.append(FunnelStep("in the dataset", data.counted, lost))
    if data.labelled is not None:
        steps.append(FunnelStep("labelled", data.labelled, _left_out(data.counted, data.labelled, "without a label")))
    if data.trainable is not None:
        lost = _left_out(data.labelled, data.trainable, "no consent, or in a suite")
        steps.append(FunnelStep("trainable", data.trainable, lost))
    return funnel_chart(steps) if data.seen else ""


def training_curve(metrics: Sequence[Mapping[str, float]]) -> str:
    """What each step measured as a running mean over 7, and the held-out figures as dots."""
    series: list[ChartSeries] = []
    for line in PROGRESS:
        points = [ChartPoint(row["step"], row[line.key]) for row in metrics if _measured(row, line.key)]
        if not points:
            continue
        held_out = line.key.startswith("held_out/")
        colour = COLOURS.get(line.key, HELD_OUT)
        series.append(ChartSeries(line.label, colour, points if held_out else running_mean(points), dots=held_out))
    return line_chart(series, Axis("optimiser step"), Axis("share, or mean reward", is_share=True))


def scores(report: EvalReport) -> str:
    """Both models on each suite with checked answers."""
    rows: list[IntervalRow] = []
    for each in report.measurements:
        if each.comparison is None:
            continue
        for name, arm, colour in (
            ("champion", each.comparison.champion, CHAMPION),
            ("candidate", each.comparison.candidate, CANDIDATE),
        ):
            words = f"{arm.value:.1%} ({arm.low:.1%} to {arm.high:.1%})"
            rows.append(IntervalRow(f"{_short(each.suite)} {name}", arm.value, arm.low, arm.high, words, colour))
    return interval_chart(rows, "right answers, with 95% intervals")


def differences(report: EvalReport) -> str:
    """Candidate less champion, paired by item, of each suite; judged ones at equal lengths, less one half."""
    rows: list[IntervalRow] = []
    gains = [(each.suite, each.comparison.difference) for each in report.measurements if each.comparison]
    gains += [(each.suite, each.win_rate.controlled) for each in report.judged if each.win_rate]
    for suite, gain in gains:
        words = f"{100 * gain.value:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        rows.append(IntervalRow(_short(suite), gain.value, gain.low, gain.high, words, CANDIDATE))
    return interval_chart(rows, "candidate less champion, with 95% intervals", zero=True)


def rollout_looks(points: Sequence[LookPoint]) -> str:
    """Right answers of both arms, look by look, and the weight of the canary."""
    if not points:
        return ""
    elapsed = points[-1].at - points[0].at
    size, unit = next((each for each in UNITS if elapsed > 3 * each[0]), UNITS[-1])

    def arms(name: str, colour: str, values: Sequence[Estimate]) -> Iterator[ChartSeries]:
        """A stage begins with no evidence: what joins two stages would be nobody's figure."""
        for number, (_, stage) in enumerate(groupby(zip(points, values, strict=True), lambda each: each[0].weight)):
            drawn = [
                ChartPoint((point.at - points[0].at) / size, each.value, each.low, each.high)
                for point, each in stage
                if each.value is not None
            ]
            yield ChartSeries(name if number == 0 else "", colour, drawn, dots=True)

    weight = [ChartPoint((point.at - points[0].at) / size, point.weight / 100) for point in points]
    series = [
        ChartSeries("share of traffic on the canary", HELD_OUT, weight, steps=True),
        *arms("champion", CHAMPION, [point.champion for point in points]),
        *arms("canary", CANDIDATE, [point.canary for point in points]),
    ]
    return line_chart(series, Axis(f"{unit} since the first look"), Axis("share", is_share=True, low=0.0, high=1.0))


def quality_over_iterations(iterations: Sequence[IterationKpi]) -> str:
    """Champion and candidate of each iteration that compared them, in their order."""
    compared = [each for each in iterations if each.quality is not None]
    series: list[ChartSeries] = []
    for name, colour, shift in (("champion", CHAMPION, -0.08), ("candidate", CANDIDATE, 0.08)):
        points: list[ChartPoint] = []
        for place, each in enumerate(compared):
            assert each.quality is not None, "looked at above"
            arm = each.quality.champion if name == "champion" else each.quality.candidate
            points.append(ChartPoint(place + shift, arm.value, arm.low, arm.high))
        series.append(ChartSeries(name, colour, points, line=name == "champion", dots=True))
    names = [f"{each.iteration[:6]} {each.state}" if len(compared) <= 6 else each.iteration[:4] for each in compared]
    return line_chart(series, Axis("iteration, the oldest first", names=names), Axis("right answers", is_share=True))


def _left_out(before: int | None, after: int | None, why: str) -> str:
    if before is None or after is None or not before:
        return ""
    return f"{max(0, before - after):,} {why} ({max(0, before - after) / before:.0%})"


def _measured(row: Mapping[str, float], key: str) -> bool:
    return "step" in row and key in row and math.isfinite(row[key])


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"
