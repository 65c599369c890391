"""The memo: every number that decided, and nothing that a person would have to look up."""

import pytest

from pipeline.core.estimate import UNKNOWN, share
from pipeline.recipe import Accelerator, Selection, Training
from pipeline.selection.choose import MethodDecision, choose
from pipeline.selection.cost import expect
from pipeline.selection.evidence import Trust
from pipeline.selection.memo import memo

from .test_choose import GOOD, UNVERIFIABLE

CASES: dict[str, tuple[dict[str, object], Selection]] = {
    "Train with GRPO": ({}, Selection()),
    "Train with DPO": (dict(UNVERIFIABLE), Selection()),
    "Do not train now": ({**UNVERIFIABLE, "label_noise": UNKNOWN, "noise_sources": {}}, Selection()),
    "Train with DPO (forced by the recipe)": ({"pairs": 10}, Selection(method="dpo")),
    "Do not train now (forced by the recipe)": ({"pairs": 0}, Selection(method="dpo")),
}


def decided(change: dict[str, object], settings: Selection) -> MethodDecision:
    evidence = GOOD.model_copy(update=change)
    return choose(evidence, settings, 0.5, expect(evidence, Training(), Accelerator(), 8_000_000_000))


@pytest.mark.parametrize("title", CASES)
def test_every_number_that_decided_is_in_it(title: str) -> None:
    decision = decided(*CASES[title])
    text = memo(decision)
    assert text.startswith(f"## {title}\n")
    for check in decision.checks:
        line = next(each for each in text.splitlines() if each.startswith(f"| {check.name} |"))
        assert check.interval() in line
        assert f"{check.sign} {check.figure(check.threshold)} |" in line
        assert line.endswith("| yes |" if check.holds else "| **no** |")
    for sentence in (*decision.reasons, *decision.would_change, *(w for why in decision.lacks.values() for w in why)):
        assert sentence in text
    for expected in decision.expected.values():
        assert f"| {expected.method.upper()} | {expected.steps} |" in text
        assert expected.basis in text


def test_it_says_how_far_to_trust_the_labels() -> None:
    trust = Trust(judge_order=share(5, 50), human=share(2, 40))
    text = memo(decided({"trust": trust}, Selection()))
    assert "rest on feedback: noise 10.0% (8.2% to 12.1%, n=900); the verifier" in text
    assert "when a pair's order is swapped: 10.0%" in text
    assert "people disagree with the side of a label: 5.0%" in text
    assert "100 reviews replace the above" in text
