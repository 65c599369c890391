"""The fit against scikit-learn's, the bootstrap against refits, and what no verdict may rest on."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from evals.win_rate import JudgedPair, fit, problems, tanh_lengths, win_rate

pytestmark = pytest.mark.slow


def simulated_pairs(
    seed: int, count: int, win: float, longer: float, habit: float, cluster: int = 1
) -> list[JudgedPair]:
    """`win`: chance that the candidate is preferred at equal lengths. `longer`: ratio of the median lengths. `habit`:
    what the judge's logit gains with tanh(d / sd(d)). About one pair in five is judged differently when swapped;
    `cluster` pairs in a row share a cluster."""
    rng = np.random.default_rng(seed)
    champion = np.exp(rng.normal(np.log(200), 0.4, count))
    candidate = longer * champion * np.exp(rng.normal(0, 0.4, count))
    lengths = np.round(candidate) - np.round(champion)
    chance = 1 / (1 + np.exp(-(np.log(win / (1 - win)) + habit * np.tanh(lengths / lengths.std(ddof=1)))))
    first = rng.random(count)
    second = np.where(rng.random(count) < 0.4, rng.random(count), first)
    return [
        JudgedPair(
            item=f"item-{i:04d}",
            cluster=f"cluster-{i // cluster:04d}",
            candidate_first=float(first[i] < chance[i]),
            champion_first=float(second[i] < chance[i]),
            champion_length=round(champion[i]),
            candidate_length=round(candidate[i]),
        )
        for i in range(count)
    ]


def pair(number: int, first: float | None = 1.0, second: float | None = 1.0, longer: int = 0) -> JudgedPair:
    return JudgedPair(
        item=f"i{number:03d}",
        cluster=f"c{number:03d}",
        candidate_first=first,
        champion_first=second,
        champion_length=500,
        candidate_length=500 + longer,
    )


def unpenalised(outcomes: np.ndarray, x: np.ndarray) -> float:
    """The rate at x = 0 by scikit-learn: a fractional outcome is a won and a lost row with their shares as weights."""
    count = len(outcomes)
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=5000)
    rows = np.concatenate([x, x])[:, None], np.repeat([1.0, 0.0], count)
    model.fit(*rows, sample_weight=np.concatenate([outcomes, 1 - outcomes]))
    return float(1 / (1 + np.exp(-model.intercept_[0])))


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_the_unpenalised_logistic_regression(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = simulated_pairs(
        seed, (100, 600)[seed % 2], rng.uniform(0.2, 0.8), rng.uniform(0.6, 1.7), rng.normal(0, 1.5)
    )
    outcomes = np.array([each.outcome for each in pairs])
    lengths = np.array([float(each.candidate_length - each.champion_length) for each in pairs])
    expected = unpenalised(outcomes, np.tanh(lengths / lengths.std(ddof=1)))
    assert 0.5 + win_rate(pairs, 0.05, 1, draws=2).controlled.value == pytest.approx(expected, abs=2e-4)


def test_weights_count_as_repeated_pairs() -> None:
    rng = np.random.default_rng(5)
    outcomes, lengths = rng.choice([0.0, 0.5, 1.0], 50), rng.normal(20, 60, 50)
    times = rng.multinomial(50, np.full(50, 0.02), size=20)
    together = fit(outcomes, lengths, times.astype(float))
    apart = [fit(outcomes.repeat(t), lengths.repeat(t), np.ones((1, 50))) for t in times]
    assert np.allclose(together[0], [theta[0] for theta, _ in apart], atol=1e-9)
    assert np.allclose(together[1], [phi[0] for _, phi in apart], atol=1e-9)


def test_the_bootstrap_draws_whole_clusters() -> None:
    alone = simulated_pairs(3, 120, 0.6, 1.2, 0.5)
    doubled = [
        each.model_copy(update={"item": f"{each.item}{copy}"}) for each in alone for copy in "ab"
    ]  # the same evidence twice is no more evidence
    one, two = win_rate(alone, 0.05, 1, draws=2000), win_rate(doubled, 0.05, 1, draws=2000)
    assert two.clusters == one.clusters == 120
    for name in ("bootstrap_lower", "bootstrap_upper", "lower", "upper", "value"):
        assert getattr(two.controlled, name) == pytest.approx(getattr(one.controlled, name), abs=2e-3)
        assert getattr(two.raw, name) == pytest.approx(getattr(one.raw, name), abs=1e-6)


def test_length_alone_wins_only_the_raw_rate() -> None:
    rate = win_rate(simulated_pairs(1, 600, 0.5, 1.5, 1.0), 0.05, 1, draws=1000)
    assert rate.raw.lower > 0 and rate.raw.bootstrap_lower > 0
    assert rate.controlled.lower < 0 < rate.controlled.upper
    assert rate.length_effect == pytest.approx(1.0, abs=0.5)


def test_a_worse_candidate_does_not_win_by_length() -> None:
    """Preferred in 40% at equal lengths, 1.65 times as long, 40 times over: as judged it often looks better."""
    rates = [win_rate(simulated_pairs(seed, 600, 0.4, 1.65, 1.0), 0.05, seed, draws=200) for seed in range(40)]
    assert not any(min(each.controlled.lower, each.controlled.bootstrap_lower) > 0 for each in rates)
    assert sum(min(each.raw.lower, each.raw.bootstrap_lower) > 0 for each in rates) >= 5


def test_swapped_arms_give_the_opposite_rate() -> None:
    pairs = simulated_pairs(4, 300, 0.4, 1.3, 0.8)
    swapped = [
        each.model_copy(
            update={
                "candidate_first": 1 - (each.champion_first or 0.0),
                "champion_first": 1 - (each.candidate_first or 0.0),
                "champion_length": each.candidate_length,
                "candidate_length": each.champion_length,
            }
        )
        for each in pairs
    ]
    one, other = win_rate(pairs, 0.05, 1, draws=500), win_rate(swapped, 0.05, 1, draws=500)
    for rate, opposite in ((one.raw, other.raw), (one.controlled, other.controlled)):
        assert rate.value == pytest.approx(-opposite.value, abs=1e-9)
        assert rate.lower == pytest.approx(-opposite.upper, abs=1e-9)
        assert rate.bootstrap_lower == pytest.approx(-opposite.bootstrap_upper, abs=1e-3)


def test_every_pair_won_leaves_room_for_an_unseen_loss() -> None:
    rate = win_rate([pair(n, longer=n) for n in range(40)], 0.05, 1, draws=100)
    assert rate.controlled.value == rate.raw.value == 0.5
    assert rate.controlled.lower == rate.controlled.bootstrap_lower == pytest.approx(0.05 ** (1 / 40) - 0.5)
    assert rate.controlled.upper == 0.5


def test_outcomes_split_by_length_leave_numbers_finite() -> None:
    pairs = [pair(n, float(n >= 20), float(n >= 20), longer=10 * n - 150) for n in range(40)]
    rate = win_rate(pairs, 0.05, 1, draws=500)
    assert all(np.isfinite(list(rate.controlled.model_dump().values())))
    assert rate.raw.value == 0.0
    assert rate.controlled.value < -0.4  # at equal lengths, as at shorter ones, the champion won


def test_equal_lengths_leave_the_raw_rate() -> None:
    pairs = [pair(n, float(n % 4 != 0), float(n % 4 != 0)) for n in range(60)]
    rate = win_rate(pairs, 0.05, 1, draws=300)
    assert rate.controlled.value == pytest.approx(rate.raw.value, abs=1e-5)
    assert rate.raw.value == 0.25
    assert np.array_equal(tanh_lengths(np.full(3, 7.0), np.ones((2, 3))), np.zeros((2, 3)))
    assert len(problems(pairs)) == 1 and "differ by 1 distinct" in problems(pairs)[0]


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        (1.0, 1.0, 1.0),
        (0.0, 0.0, 0.0),
        (1.0, 0.0, 0.5),
        (0.0, 1.0, 0.5),
        (1.0, 0.5, 0.5),
        (0.5, 0.5, 0.5),
        (None, None, 0.5),
    ],
)
def test_an_outcome_needs_both_orders(first: float | None, second: float | None, outcome: float) -> None:
    assert pair(1, first, second).outcome == outcome


def test_a_judge_that_always_takes_the_first_is_refused() -> None:
    always = [pair(n, 1.0, 0.0, longer=n) for n in range(50)]
    assert "100% of the pairs" in problems(always)[0]
    swapped = [pair(n, 1.0, float(n >= 20), longer=n) for n in range(50)]
    assert problems(swapped) == []  # 40% is borne, more is not
    assert "41% of the pairs" in problems(swapped[:49])[0]


def test_pairs_without_a_clear_outcome_are_refused() -> None:
    good = [pair(n, longer=n) for n in range(30)]
    assert problems(good) == []
    assert "no pair" in problems([])[0]
    assert "judged twice, such as i003" in problems([*good, good[3]])[0]
    for broken in (pair(31, 0.7, 0.7), pair(31, float("nan"), 1.0), pair(31, None, 1.0)):
        assert any("neither 0, 0.5 nor 1" in reason for reason in problems([*good, broken]))
