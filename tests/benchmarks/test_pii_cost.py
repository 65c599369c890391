"""Masking costs as much as there is text, whatever its author chose: by counts of operations, which no load changes."""

import pytest

from benchmarks.pii_cost import FAMILIES, growth, operations, text_of
from pipeline.traces import pii

CHARS = 500
MOST = 400
"""Operations a character, of which the worst family takes 267."""


@pytest.mark.parametrize("family", FAMILIES)
def test_masking_costs_in_proportion_to_the_text(family: str) -> None:
    each, grows = growth(family, CHARS)
    assert grows < 1.1 and each < MOST


@pytest.mark.slow
def test_a_validator_that_begins_anew_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place of a run of digits tried to its end, as a careless search for numbers would."""

    def careless(run: str) -> list[tuple[int, int]]:
        for first in range(len(run)):
            for last in range(first, len(run)):
                if not run[last]:
                    return [(first, last)]
        return []

    cards = [(kind._replace(confirm=careless) if kind.name == "CARD" else kind, each) for kind, each in pii._compiled]
    before = operations(text_of("spaced digits", CHARS))
    monkeypatch.setattr(pii, "_compiled", cards)
    assert operations(text_of("spaced digits", CHARS)) > before
    assert growth("spaced digits", CHARS)[1] > 2
