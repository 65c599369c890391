"""The plots of an iteration: drawn for what was measured, the same file each time."""

import pytest

from pipeline.training.result import HealthFinding
from pipeline.views import Plot, text_plot
from pipeline.views.iteration import IterationBar, funnel, quality_and_cost, reward_distribution, training_panels

FINDINGS = [HealthFinding(verdict=verdict, rule="r", step=3, reason="") for verdict in ("HOLD", "STOP")]
NAN = float("nan")


def grpo(steps: int) -> list[dict[str, float]]:
    return [
        {"step": float(step), "reward": NAN if step == 2 else 0.5, "accuracy": step / steps, "kl": 0.01,
         "seconds/step": 2.0, **({"held_out/accuracy": 0.5} if step % 4 == 0 else {})}
        for step in range(1, steps + 1)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plot", "texts"),
    [
        (funnel(10, {"no consent": 3}, 7), ["What the gates let through", "no consent", "7"]),
        (funnel(0, {}, 0), ["admitted"]),
        (reward_distribution([1, 2, 3], 0.5), ["mean 0.50"]),
        (training_panels(grpo(1)), ["accuracy"]),
        (training_panels(grpo(100), FINDINGS), ["KL to the base", "held_out/accuracy", "seconds a step"]),
        (training_panels([{"step": 1.0, "reward": NAN}]), ["No step has measured anything"]),
        (quality_and_cost([]), ["No iteration yet"]),
        (
            quality_and_cost([IterationBar("a", None, None, 1.0), IterationBar("b", (0.5, 0.4, 0.6), None, 0.0)]),
            ["device hours", "champion"],
        ),
        (text_plot("Nothing."), [">Nothing.</text>"]),
    ],
)
def test_a_plot_shows_what_there_is(plot: Plot, texts: list[str]) -> None:
    shown = plot.svg().decode()
    assert [text for text in texts if text not in shown] == []
    assert plot.svg().decode() == shown
    assert plot.png().startswith(b"\x89PNG")
