"""The labelled items of the checker's benchmark are as right or wrong as they are said to be."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.rewards import CORRUPTIONS, corrupted, mixed, solutions
from pipeline.rewards.verifiers import final_answer, plain_number

NOWHERE = Path("nowhere")


def test_the_mix_is_what_it_is_said_to_be() -> None:
    items = mixed(solutions(NOWHERE), 2000)
    silent = sum(final_answer(item.completion) is None for item in items)
    right = sum(item.right for item in items)
    numbers = sum(plain_number(item.reference) is not None for item in items)
    assert len(items) == 2000
    assert 60 <= silent <= 140 and 850 <= right <= 1050 and 150 <= numbers <= 350
    assert max(Counter(item.reference for item in items).values()) < 100


@pytest.mark.parametrize("gold", ["1,234", "5", "0", "-17", "11"])
def test_corruptions_are_wrong(gold: str) -> None:
    value = Fraction(gold.replace(",", ""))
    result = corrupted(gold)
    assert result and {*result} <= {*CORRUPTIONS}
    assert all(plain_number(new) not in (None, value) for new in result.values())
