"""The plots of a training: drawn for what was measured, nothing cut off, and the numbers where they belong."""

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.training.result import CAUSES, Goodput, HealthFinding
from pipeline.views import Plot
from pipeline.views import training as training_plots
from tests.pipeline.views.test_rewards import figures, texts

pytestmark = pytest.mark.slow

assert figures  # the fixture

NAN = float("nan")


def grpo(steps: int) -> list[dict[str, float]]:
    return [
        {"step": float(step), "reward": 0.5, "accuracy": step / steps, "kl": 0.01, "entropy": 1.0, "grad_norm": 0.5,
         "completions/mean_length": 20.0, "completions/clipped_ratio": 0.1, "frac_reward_zero_std": 0.4,
         "seconds/step": 2.0, "seconds/generate": 1.0, "seconds/update": 0.5,
         **({"held_out/accuracy": 0.5, "held_out/kl": 0.02, "held_out/length": 21.0} if step % 4 == 0 else {})}
        for step in range(1, steps + 1)
    ]  # fmt: skip


def dpo(steps: int) -> list[dict[str, float]]:
    return [
        {"step": float(step), "loss": 0.6, "rewards/accuracies": 1.0, "rewards/margins": -0.2, "grad_norm": 12_345.0,
         "held_out/accuracy": 0.0}
        for step in range(1, steps + 1)
    ]  # fmt: skip


@pytest.mark.parametrize("steps", [1, 8, 1000])
@pytest.mark.parametrize(
    ("rows", "words"),
    [(grpo, ["reward", "accuracy"]), (dpo, ["pairs ranked right", "held-out accuracy"])],
)
def test_progress_shows_what_the_method_measures(
    figures: list[Any], rows: Callable[[int], list[dict[str, float]]], words: list[str], steps: int
) -> None:
    assert training_plots.training_curve(rows(steps)).png().startswith(b"\x89PNG")
    legend = {text.get_text() for each in figures[0].legends for text in each.get_texts()}
    assert set(words) <= legend
    assert ("held-out accuracy" in legend) == (rows is dpo or steps >= 4)


@pytest.mark.parametrize(
    ("rows", "panels"),
    [
        (grpo, {"KL to the base", "entropy", "completion length", "gradient norm", "flat groups", "truncated"}),
        (dpo, {"gradient norm", "margin of the pairs"}),
    ],
)
def test_health_has_a_panel_for_each_thing_that_was_measured(
    figures: list[Any], rows: Callable[[int], list[dict[str, float]]], panels: set[str]
) -> None:
    findings = [HealthFinding(verdict=v, rule="r", step=s, reason="") for v, s in (("HOLD", 3), ("STOP", 7))]
    training_plots.health_panels(rows(100), findings).png()
    (figure,) = figures
    shown = [axes for axes in figure.axes if axes.axison]
    assert {axes.get_title(loc="left").partition(" (")[0] for axes in shown} == panels
    assert {"HOLD", "STOP"} <= {text.get_text() for text in figure.legends[0].get_texts()}
    for axes in shown:
        assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [3, 7]


@pytest.mark.parametrize("steps", [1, 100, 1000])
def test_the_bars_of_a_step_are_as_high_as_the_step_was_long(figures: list[Any], steps: int) -> None:
    training_plots.step_time(grpo(steps)).png()
    (axes,) = figures[0].axes
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["generate 50%", "update 25%", "other 25%"]
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    assert len(tops) <= training_plots.MAX_BARS
    assert tops == pytest.approx([2.0] * len(tops))


def test_goodput_is_one_bar_of_the_whole_time(figures: list[Any]) -> None:
    goodput = Goodput(total_s=160.0, productive_s=100.0, badput_s=dict.fromkeys(CAUSES, 10.0))
    training_plots.goodput_bar(goodput).png()
    (axes,) = figures[0].axes
    bars = [bar for container in axes.containers for bar in container]
    assert [bar.get_x() for bar in bars] == [0, 100, 110, 120, 130, 140, 150]
    assert bars[-1].get_x() + bars[-1].get_width() == goodput.total_s
    output = "".join(texts(figures[0]))
    assert "productive  100 s (62.5%)" in output
    assert "lost  10 s (6.2%)" in output
    assert "Goodput 62.5% of 2.7 min" in output


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (
            lambda: training_plots.training_curve([{"step": 1.0, "loss": NAN, "reward": NAN}]),
            "No step has measured a reward",
        ),
        (lambda: training_plots.health_panels([{"step": 1.0}]), "No step has measured its health"),
        (lambda: training_plots.step_time([]), "No step has measured its time"),
        (lambda: training_plots.goodput_bar(Goodput(total_s=0, productive_s=0, badput_s={})), "no time on record"),
    ],
)
def test_where_there_is_nothing_to_draw_the_picture_says_so(
    figures: list[Any], picture: Callable[[], Plot], words: str
) -> None:
    picture().png()
    assert words in "".join(texts(figures[0]))


def test_a_value_that_is_no_number_leaves_a_gap_and_no_more(figures: list[Any]) -> None:
    rows = [{**row, "grad_norm": float("inf"), "reward": NAN} if row["step"] == 5 else row for row in grpo(9)]
    training_plots.health_panels(rows).png()
    training_plots.training_curve(rows).png()
    for figure in figures:
        for axes in figure.axes:
            assert all(abs(each) < 1e6 for each in axes.get_ylim())
