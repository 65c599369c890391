"""The simulated traffic without references: what its choices are worth, and which of them is right."""

from __future__ import annotations

import pytest

from benchmarks.selection_signals import RATES, Outcome, Signals, outcome, right, worth


def test_worth_is_that_of_the_desk() -> None:
    assert worth((0.0,) * 5) == 1.0
    assert worth((0.0, 0.0, 0.0, 0.0, 1.0)) == worth((1.0, 0.0, 0.0, 0.0, 0.0)) == 0.0
    assert worth((0.0, 0.0, 1.0, 1.0, 0.0)) == pytest.approx(0.15)
    assert worth(RATES) == pytest.approx(0.53, abs=0.01)


@pytest.mark.parametrize(
    ("world", "chosen"),
    [
        (Signals(), "sft"),
        (Signals(judge=None), "kto"),
        (Signals(judge=None, noise=0.5), "none"),
        (Signals(judge=None, thumbs=50), "none"),
        (Signals(judge=0.5), "kto"),
    ],
)
def test_the_rule_follows_the_signal(world: Signals, chosen: str) -> None:
    result = outcome(world, seed=3)
    assert result.chosen == chosen
    assert result.utilities["none"] == pytest.approx(worth(RATES))


def test_thumbs_that_mean_something_are_worth_learning() -> None:
    clean, random = (outcome(Signals(judge=None, noise=noise), seed=3).utilities["kto"] for noise in (0.1, 0.5))
    assert clean > worth(RATES) + 0.1 > random


def test_a_choice_is_held_against_the_best_one() -> None:
    better = Outcome("sft", {"none": 0.5, "kto": 0.6, "sft": 0.9})
    assert right([better, better._replace(chosen="kto"), better._replace(chosen="none")]) == [True, False, False]
    harm = Outcome("none", {"none": 0.5, "kto": 0.3})
    assert right([harm, harm._replace(chosen="kto")]) == [True, False]
    even = Outcome("kto", {"none": 0.5, "kto": 0.6, "sft": 0.61})
    assert right([even]) == [True], "within the standard error of what the benchmark of signals measures"
