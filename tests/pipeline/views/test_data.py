"""The picture of a decision: a dot for each check, in the colour and at the place of what was found."""

import pytest
from matplotlib.figure import Figure

from pipeline.core.estimate import share
from pipeline.recipe import Accelerator, Selection, Training
from pipeline.selection.choose import MethodDecision, choose
from pipeline.selection.cost import expect
from pipeline.selection.evidence import Trust, measure
from pipeline.selection.pairing import by_prompt, pairs
from pipeline.views import GREEN, GREY, ORANGE
from pipeline.views.data import draw
from tests.pipeline.selection.labelled import row

SETS = {"grpo": (400, 10), "dpo": (1200, 3), "none": (30, 3), "unknown": (300, 0)}
"""Prompts, and of ten of them how many have a reference; the others have users' feedback alone."""


def drawn(decision: MethodDecision) -> Figure:
    figure = Figure(figsize=(8.4, 4.6), dpi=110, layout="constrained")
    draw(figure, decision)
    return figure


def decide(prompts: int, verifiable: int) -> MethodDecision:
    """The method for prompts with three good completions of four, or two, or one."""
    rows = []
    for prompt in range(prompts):
        rated = {} if prompt % 10 < verifiable else {"reference": None, "verifier": None, "profile": "rated"}
        for number in range(4):
            reward = float(number > prompt % 3)
            opinion = {"correct": None, "feedback": reward} if rated else {}
            rows.append(row(f"{prompt}-{number}", reward, f"prompt {prompt}", **rated, **opinion))
    settings = Selection()
    trust = Trust(human=share(1, 400))
    evidence = measure(rows, pairs(by_prompt(rows), settings), trust, settings)
    return choose(evidence, settings, 0.5, expect(evidence, Training(), Accelerator(), 8_000_000_000))


@pytest.fixture(params=SETS)
def decision(request: pytest.FixtureRequest) -> MethodDecision:
    decision = decide(*SETS[request.param])
    assert decision.method == {"unknown": "dpo"}.get(request.param, request.param)
    if request.param == "unknown":
        assert any(check.estimate.value is None for check in decision.checks)
    return decision


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
