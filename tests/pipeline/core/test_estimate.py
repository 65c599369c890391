"""The intervals against scipy, and by simulation: what claims 95% has to cover about that."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, spearmanr

from pipeline.core.estimate import Array, rank_correlation, share

Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 30), (30, 30), (7, 20), (813, 1319)])
def test_a_share_has_wilsons_interval(successes: int, n: int) -> None:
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    result = share(successes, n)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert result.low is not None and result.value is not None and result.high is not None
    assert 0 <= result.low <= result.value <= result.high <= 1


def test_a_share_of_nothing_is_unknown() -> None:
    assert str(share(0, 0)) == "unknown (n=0)"


levels = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=4, max_size=60)


@given(levels)
def test_rho_is_scipys_and_within_its_interval(pairs: list[tuple[int, int]]) -> None:
    first, second = zip(*pairs, strict=True)
    result = rank_correlation(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert (result.value, result.n) == (None, len(pairs))
        return
    assert result.value == pytest.approx(spearmanr(first, second)[0], abs=1e-9)
    assert result.low is not None and result.high is not None
    assert -1 <= result.low <= result.value <= result.high <= 1


def test_a_small_perfect_sample_is_not_certain() -> None:
    ten = rank_correlation([0, 1] * 5, [0, 1] * 5)
    assert ten.value == 1
    assert ten.low is not None and ten.low < 0.7  # the lower bound that reviews are asked for
    many = rank_correlation([0, 1] * 100, [0, 1] * 100)
    assert many.low is not None and many.low > 0.9


def normal(rho: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        first = rng.standard_normal(n)
        return first, rho * first + np.sqrt(1 - rho**2) * rng.standard_normal(n)

    return draw


def verdicts(slips: float, good: float = 0.5) -> Draw:
    """A verdict, and people who say the same but for a slip."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        first = (rng.random(n) < good).astype(float)
        return first, np.where(rng.random(n) < slips, 1 - first, first)

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize(
    "draw",
    [
        *(pytest.param(normal(rho), id=f"normal-{rho}") for rho in (0.0, 0.7, 0.95)),
        *(pytest.param(verdicts(slips), id=f"verdicts-{slips}") for slips in (0.02, 0.1, 0.3)),
        pytest.param(verdicts(0.05, good=0.2), id="unbalanced"),
    ],
)
def test_the_interval_of_rho_covers(draw: Draw, n: int) -> None:
    rng = np.random.default_rng(7)
    truth = spearmanr(*draw(rng, 100_000))[0]
    matches = [rank_correlation(*draw(rng, n)) for _ in range(400)]
    bounds = [(each.low, each.high) for each in matches if each.low is not None and each.high is not None]
    covered = np.mean([low <= truth <= high for low, high in bounds])
    assert covered > 0.922  # 0.95 less two and a half standard errors of 400 draws
