"""The benchmark of the checker at a size that takes seconds: its truths and its sums, not its times."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.rewards import run
from benchmarks.rewards_rivals import CORRUPTIONS, corrupted, mixed, plain, serial, solutions
from pipeline.rewards.verifiers import final_answer, plain_number

NOWHERE = Path("nowhere")


def test_the_same_seed_makes_the_same_items() -> None:
    texts = solutions(NOWHERE)
    assert len(texts) == 1319 and texts == solutions(NOWHERE)
    assert mixed(texts, 200) == mixed(texts, 200) != mixed(texts, 200, seed=8)


def test_the_mix_is_what_it_is_said_to_be() -> None:
    items = mixed(solutions(NOWHERE), 2000)
    silent = sum(final_answer(item.completion) is None for item in items)
    right = sum(item.right for item in items)
    numbers = sum(plain_number(item.reference) is not None for item in items)
    assert len(items) == 2000
    assert 60 <= silent <= 140 and 850 <= right <= 1050 and 150 <= numbers <= 350
    assert max(Counter(item.reference for item in items).values()) < 100


@pytest.mark.variant
@pytest.mark.slow
def test_the_truth_is_what_math_verify_finds_too() -> None:
    items = mixed(solutions(NOWHERE), 60) + plain(solutions(NOWHERE), 20)
    assert serial(items).scores == [float(item.right) for item in items]


@pytest.mark.parametrize("gold", ["1,234", "5", "0", "-17", "11"])
def test_corruptions_are_wrong(gold: str) -> None:
    value = Fraction(gold.replace(",", ""))
    result = corrupted(gold)
    assert result and {*result} <= {*CORRUPTIONS}
    assert all(plain_number(new) not in (None, value) for new in result.values())


@pytest.mark.variant
@pytest.mark.slow
def test_the_figures_are_there_and_agree() -> None:
    figures = run(NOWHERE, 40, limit_s=2.0)
    assert figures["lost_labels"] == figures["ours_mislabelled"] == 0
    assert figures["false_positive_rate"] == figures["false_negative_rate"] == figures["unlabelled"] == 0
    assert figures["ours_errors"] == figures["plain_ours_errors"] == 0
    assert figures["right_answers"] == 2 * 100 < figures["wrong_answers"] <= (len(CORRUPTIONS) + 1) * 100
    for rival in ("serial", "trl"):
        assert figures[f"speedup_to_{rival}"] > 0 and figures[f"plain_speedup_to_{rival}"] > 0
        ends = [figures[f"{rival}_{end}"] for end in ("hangs", "crashes", "mislabelled", "zeros")]
        assert 0 <= sum(ends) <= figures["poison"]  # the rest has no score
