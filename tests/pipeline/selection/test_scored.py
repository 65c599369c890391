"""Prompts that no reference can check become GRPO's material where the recipe forces it, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.selection.choose import choose
from pipeline.selection.pairing import LabelledRow
from pipeline.selection.preferences import PreferenceDataset

from .labelled import row
from .test_preferences import SETTINGS, WORDS, Place, answers, asked, read
from .test_winners import sample

ROWS = [row(name, None, prompt=name, reference=None) for name in WORDS]
SPREAD = {"sun": (0.0, 1.0), "moon": (0.4, 0.6), "rain": (0.5, 0.5), "wind": (0.5, None), "snow": (0.1, 0.9)}
FRESH = tuple(
    sample(name, f"answer {number}", score) for name, scores in SPREAD.items() for number, score in enumerate(scores)
)


def build(root: Path, method: str, rows: list[LabelledRow] = ROWS) -> PreferenceDataset:
    return Place(root).build(rows, fresh=FRESH, method=method)


def test_prompts_whose_samples_differ_are_grpos_material(tmp_path: Path) -> None:
    dataset = build(tmp_path, "grpo")
    assert asked(dataset.prompts) == ["sun", "snow", "moon"], "the largest spread first"
    assert {(each["reference"], each["verifier"], each["frontier"]) for each in read(dataset.prompts)} == {
        (None, None, False)
    }
    assert (dataset.evidence.frontier_prompts, dataset.evidence.scored_prompts) == (0, 3)
    decision = choose(dataset.evidence, SETTINGS.model_copy(update={"method": "grpo"}), 0.0)
    assert (decision.method, decision.forced) == ("grpo", True)


@pytest.mark.parametrize("method", ["auto", "sft"])
def test_nothing_else_takes_them(tmp_path: Path, method: str) -> None:
    dataset = build(tmp_path, method)
    assert dataset.prompts.rows == 0 and dataset.evidence.scored_prompts == 3
    assert choose(dataset.evidence, SETTINGS, 0.0).method == "none"


def test_what_can_be_checked_is_never_mixed_with_scores(tmp_path: Path) -> None:
    dataset = build(tmp_path, "grpo", [*ROWS, *answers("even", 1.0, 0.0)])
    assert asked(dataset.prompts) == ["even"]
    assert (dataset.evidence.policy_prompts, dataset.evidence.scored_prompts) == (1, 3)


def test_samples_that_score_alike_are_no_material(tmp_path: Path) -> None:
    flat = tuple(sample(name, f"{number}", 0.5) for name in WORDS for number in range(4))
    dataset = Place(tmp_path).build(ROWS, fresh=flat, method="grpo")
    assert dataset.prompts.rows == dataset.evidence.policy_prompts == 0
    decision = choose(dataset.evidence, SETTINGS.model_copy(update={"method": "grpo"}), 0.0)
    assert decision.method == "none"
    assert "nor any whose fresh samples differ in score" in decision.reasons[0]
