"""Who is drawn: the random stratum without bias, and edge cases of every kind."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pipeline.recipe.rewards import Review
from pipeline.rewards.reviews import strata
from tests.pipeline.rewards.reviews.conftest import WEEK, label, table


@pytest.mark.parametrize(
    ("rows", "settings", "expected"),
    [
        (300, Review(share=0.01), 3),
        (301, Review(share=0.01), 4),
        (300, Review(share=0.5, max_random=7), 7),
        (0, Review(), 0),
    ],
)
def test_the_random_stratum_is_a_share_up_to_a_most(rows: int, settings: Review, expected: int) -> None:
    unlabelled = [label(at, final_reward=None, reason="no_signal") for at in range(rows, rows + 50)]
    picks = strata.draw(table([label(at) for at in range(rows)] + unlabelled), settings, WEEK, "d")
    random = [pick for pick in picks if pick.stratum == "random"]
    assert len(random) == expected
    assert not {pick.trace_id for pick in random} & {row["trace_id"] for row in unlabelled}


def test_draw_depends_on_the_week_and_the_labels_alone() -> None:
    labels = table([label(at) for at in range(500)])
    here = strata.draw(labels, Review(), WEEK, "d")
    assert strata.draw(labels.take(list(range(499, -1, -1))), Review(), WEEK, "d") == here
    assert strata.draw(labels, Review(), "2026-W48", "d") != here
    assert strata.draw(labels, Review(), WEEK, "another table") != here


def test_the_random_stratum_is_unbiased() -> None:
    rewards = np.random.default_rng(2).beta(0.5, 0.5, 400)
    labels = table([label(at, final_reward=float(reward), correct=1.0) for at, reward in enumerate(rewards)])
    settings, weeks = Review(share=0.1, max_edge_cases=1), 300
    drawn = [
        [pick for pick in strata.draw(labels, settings, f"week {n}", "d") if pick.stratum == "random"]
        for n in range(weeks)
    ]
    means = [np.mean([rewards[int(pick.trace_id[1:])] for pick in picks]) for picks in drawn]
    error = rewards.std() / np.sqrt(40 * weeks)
    assert np.mean(means) == pytest.approx(rewards.mean(), abs=3 * error)
    times = Counter(pick.trace_id for picks in drawn for pick in picks)
    # Each row is drawn in 30 of 300 weeks, give or take what a binomial gives.
    assert np.std([times[f"t{at:04d}"] for at in range(400)]) == pytest.approx(np.sqrt(300 * 0.1 * 0.9), rel=0.15)


def test_edge_cases_are_of_every_kind_and_not_random() -> None:
    far = {"final_reward": 0.99}
    rows = [label(at, **far) for at in range(50)]
    rows += [label(100 + at, **far, correct=1.0, judge=0.1) for at in range(10)]
    rows += [label(200 + at, final_reward=0.68) for at in range(10)]
    rows += [label(300 + at, final_reward=None, reason="timeout", missing='{"correct": "timeout"}') for at in range(10)]
    rows += [label(400 + at, **far, missing='{"feedback": "burst"}') for at in range(10)]
    rows += [label(500 + at, **far, missing='{"feedback": "over_user_cap", "judge": "budget"}') for at in range(10)]
    picks = strata.draw(table(rows), Review(share=0.2, max_edge_cases=20), WEEK, "d")
    assert len({pick.trace_id for pick in picks}) == len(picks) == 18 + 20
    whys = {pick.why for pick in picks if pick.stratum == "edge"}
    assert whys == {
        "correct says 1.00, judge says 0.10",
        "reward 0.68 is next to 0.70",
        "the check failed: timeout",
        "feedback in quarantine",
    }


def test_few_edge_cases_of_one_kind_leave_room_for_others() -> None:
    rows = [label(0, final_reward=0.7), *(label(at, final_reward=0.99, correct=0.0, judge=1.0) for at in range(1, 99))]
    picks = strata.draw(table(rows), Review(share=0.0, max_edge_cases=30), WEEK, "d")
    assert len(picks) == 30
    assert "t0000" in {pick.trace_id for pick in picks}
