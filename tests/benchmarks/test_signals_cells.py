"""An interrupted benchmark measures what is missing, and only that."""

import pytest

from benchmarks.signals_methods import chosen_is_best


@pytest.mark.parametrize(
    ("chosen", "sft", "kto", "right"),
    [
        ("sft", 0.80, 0.70, True),
        ("kto", 0.80, 0.70, False),
        ("kto", 0.80, 0.79, True),
        ("none", 0.80, 0.70, False),
        ("none", 0.30, 0.20, True),
        ("none", 0.30, 0.45, False),
    ],
)
def test_a_choice_is_right_within_one_standard_error(chosen: str, sft: float, kto: float, right: bool) -> None:
    before = {"utility": 0.46, "error": 0.02}
    after = {"sft": {"utility": sft, "error": 0.02}, "kto": {"utility": kto, "error": 0.02}}
    assert chosen_is_best(chosen, before, after) == right
