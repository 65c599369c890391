import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from evals import statistics

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("n", [30, 500])
def test_singleton_clusters_give_the_paired_t_test(n: int) -> None:
    gains = RNG.integers(-4, 5, size=n).astype(float)
    sizes = np.full(n, 4.0)
    (found,) = statistics.paired(gains[None], sizes, alpha=0.05, seed=1, draws=10)
    reference = stats.ttest_1samp(gains / 4, 0)
    two, one = reference.confidence_interval(0.95), reference.confidence_interval(0.9)
    assert found.standard_error == pytest.approx(stats.sem(gains / 4), rel=1e-9)
    assert (found.low, found.high) == pytest.approx(tuple(two), rel=1e-9)
    assert (found.lower, found.upper) == pytest.approx(tuple(one), rel=1e-9)


def test_unequal_clusters_follow_the_published_sum_over_pairs() -> None:
    """Miller's clustered variance is a double sum over the items of each cluster; ours adds the factor C/(C-1)."""
    clusters = [f"c{int(c):02d}" for c in RNG.integers(0, 37, size=150)]
    values = RNG.integers(0, 2, size=150).astype(float)
    names = sorted(set(clusters))
    sizes = np.array([clusters.count(name) for name in names], dtype=float)
    mean, error = statistics.mean_and_standard_error(statistics.cluster_sums(values, clusters), sizes)
    centred = values - values.mean()
    pairs = sum(centred[i] * centred[j] for i in range(150) for j in range(150) if clusters[i] == clusters[j])
    assert mean == pytest.approx(values.mean(), rel=1e-9)
    assert error == pytest.approx(np.sqrt(pairs * len(names) / (len(names) - 1)) / 150, rel=1e-9)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (0, 7), (7, 0), (12, 5), (60, 41), (300, 250)])
def test_mcnemar_is_the_exact_binomial_test(wins: int, losses: int) -> None:
    expected = stats.binomtest(wins, wins + losses, alternative="greater").pvalue if wins + losses else 1.0
    assert statistics.mcnemar(wins, losses) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("hits", "n"), [(0, 30), (1, 30), (17, 40), (499, 500), (500, 500)])
def test_wilson_agrees_with_scipy(hits: int, n: int) -> None:
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert statistics.wilson(hits, n) == pytest.approx(tuple(expected), rel=1e-9, abs=1e-12)


def test_the_interval_of_none_and_of_all_ends_at_0_and_1() -> None:
    for n in range(1, 60):  # rounding leaves 0 or 1 at every second of these
        assert (statistics.wilson(0, n)[0], statistics.wilson(n, n)[1]) == (0.0, 1.0)


@pytest.mark.parametrize("clusters", [30, 100, 330])
def test_zero_events_are_bounded_exactly(clusters: int) -> None:
    expected = stats.binomtest(0, clusters, alternative="less").proportion_ci(0.95, method="exact").high
    assert statistics.zero_event_bound(clusters, 0.05) == pytest.approx(expected, rel=1e-9)


def test_bootstrap_agrees_with_t_and_with_itself() -> None:
    sums, sizes = RNG.integers(-4, 5, size=(2, 400)).astype(float), RNG.integers(1, 4, size=400) * 4.0
    found = statistics.paired(sums, sizes, alpha=0.05, seed=1)
    for each in found:
        bounds = each.bootstrap_lower, each.bootstrap_upper
        assert bounds == pytest.approx((each.lower, each.upper), abs=0.1 * each.standard_error)
    assert found == statistics.paired(sums, sizes, alpha=0.05, seed=1)
    assert found != statistics.paired(sums, sizes, alpha=0.05, seed=2)


def test_each_resample_has_as_many_clusters() -> None:
    drawn = np.concatenate(list(statistics.resamples(40, 1200, seed=5)))
    assert (drawn.sum(axis=1) == 40).all() and len(np.unique(drawn, axis=0)) == 1200


@pytest.mark.parametrize(("share", "size"), [(0.6, 2), (0.97, 2), (0.03, 5)])
def test_the_interval_of_an_arm_is_the_t_interval_within_0_and_1(share: float, size: int) -> None:
    sizes = np.full(12, float(size))
    sums = RNG.binomial(size, share, size=12).astype(float)
    sums[:2] = 0.0, float(size)  # never all equal
    mean, low, high = statistics.accuracy_interval(sums, sizes)
    expected = stats.ttest_1samp(sums / size, 0).confidence_interval(0.95)
    assert mean == pytest.approx(sums.sum() / sizes.sum())
    assert (low, high) == pytest.approx((max(0.0, expected.low), min(1.0, expected.high)), rel=1e-9)


def test_an_arm_without_variation_still_has_an_interval() -> None:
    sizes = np.full(50, 8.0)
    mean, low, high = statistics.accuracy_interval(sizes, sizes)
    assert (mean, high) == (1.0, 1.0)
    assert low == pytest.approx(stats.binomtest(50, 50).proportion_ci(method="wilson").low, rel=1e-9)


def test_an_arm_of_single_samples_has_the_interval_of_a_share() -> None:
    expected = stats.binomtest(17, 40).proportion_ci(method="wilson")
    assert statistics.accuracy_interval(np.repeat([1.0, 0.0], [17, 23]), np.ones(40))[1:] == pytest.approx(expected)


def test_a_total_of_0_counts_as_half_a_token_in_a_log_ratio() -> None:
    none, some = np.zeros(30), np.full(30, 2.0)
    risen, fallen = (statistics.log_ratio(*pair, alpha=0.05, seed=1, draws=9) for pair in ((none, some), (some, none)))
    for result, value in ((risen, np.log(120)), (fallen, -np.log(120))):
        assert (result.value, result.bootstrap_lower) == pytest.approx((value, value))
    once = np.array([0.0, 0.0, 0.0, 2.0])  # not drawn in one of three resamples
    risen, fallen = (statistics.log_ratio(*pair, 0.05, 1, 200) for pair in ((once, some[:4]), (some[:4], once)))
    assert (risen.bootstrap_upper, -fallen.bootstrap_lower) == pytest.approx((np.log(16), np.log(16)))


def test_a_log_ratio_is_bounded_by_the_delta_method() -> None:
    before, after = RNG.poisson(40, size=60).astype(float), RNG.poisson(30, size=60).astype(float)
    result = statistics.log_ratio(before, after, alpha=0.05, seed=1)
    apart = after / after.mean() - before / before.mean()  # the derivative of the logarithm, cluster by cluster
    value, error = np.log(after.sum() / before.sum()), stats.sem(apart)
    assert (result.value, result.standard_error) == pytest.approx((value, error), rel=1e-9)
    for (low, high), level in (((result.lower, result.upper), 0.9), ((result.low, result.high), 0.95)):
        assert (low, high) == pytest.approx(stats.t.interval(level, 59, value, error), rel=1e-9)
    bounds = result.bootstrap_lower, result.bootstrap_upper
    assert bounds == pytest.approx((result.lower, result.upper), abs=0.1 * error)


alike = st.tuples(st.integers(2, 100), st.integers(1, 1000).flatmap(lambda k: st.tuples(st.integers(0, k), st.just(k))))


@pytest.mark.slow
@given(alike)
@example((30, (15, 22)))  # 22 * (15 / 22) is not 15
@example((30, (1, 1)))
@example((7, (0, 1)))
def test_clusters_that_agree_are_never_certain(drawn: tuple[int, tuple[int, int]]) -> None:
    """No width of a t interval, and none of its rounding: an exact bound of the clusters that were not seen."""
    n, (hits, k) = drawn
    sums, sizes = np.full(n, float(hits)), np.full(n, float(k))
    mean, low, high = statistics.accuracy_interval(sums, sizes)
    assert (low, high) == pytest.approx(statistics.wilson(hits * n / k, n), abs=1e-9)
    assert 0 <= low <= mean <= high <= 1
    assert high - low > 1 / (n + 2)
    (found,) = statistics.paired(sums[None], sizes, 0.05, seed=1, draws=10)
    assert (found.standard_error, found.value) == (0, hits / k)
    bound = stats.binomtest(0, n, alternative="less").proportion_ci(0.95, method="exact").high
    assert found.lower == pytest.approx((1 - bound) * hits / k - bound), "the others lost all that they could"
    assert found.upper == pytest.approx((1 - bound) * hits / k + bound)
