"""How often the gate errs, over thousands of simulated evaluations with known truth (seeded, so never flaky)."""

from collections import Counter
from itertools import repeat

import numpy as np
import pytest

from evals import gate, statistics
from evals.gate import Verdict
from evals.records import BundleRef, Comparison, ConfidenceInterval, Difference, EvalReport, Guard, SuiteMeasurement
from evals.statistics import Array
from pipeline.core.storage import ModelRef
from pipeline.recipe import Evaluation
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow

GATES, K = 3000, 4
NOBODY = ModelRef(uri="", digest="")


def gains(before: float, after: float, rho: float, clusters: int, size: int, seed: int) -> Array:
    """(GATES, clusters, size) paired differences in samples; `rho` is the correlation of the success rates of two items
    of a cluster. The true difference of the means is `after - before`."""
    rng = np.random.default_rng(seed)

    def rates(mean: float) -> Array:
        spread = 0.9 * min(mean, 1 - mean)
        common = rng.uniform(-1, 1, size=(GATES, clusters, 1))
        own = rng.uniform(-1, 1, size=(GATES, clusters, size))
        return mean + spread * np.where(rng.random(own.shape) < np.sqrt(rho), common, own)

    return rng.binomial(K, rates(after)).astype(float) - rng.binomial(K, rates(before))


def simulate(before: float, after: float, rho: float, clusters: int, size: int, seed: int) -> tuple[Array, Array]:
    """The same as (GATES, clusters) sums and the sizes of the clusters, in samples."""
    return gains(before, after, rho, clusters, size, seed).sum(axis=-1), np.full(clusters, float(size * K))


def verdicts(gain: tuple[Array, Array], rise: tuple[Array, Array] | None, section: Evaluation) -> Counter[Verdict]:
    """Judge each simulated evaluation with the real rule. Without `rise` the guards have nothing to object to."""
    sums, sizes = gain
    accuracy = statistics.paired(sums, sizes, section.alpha, seed=1, draws=1000)
    harm = statistics.paired(*rise, section.alpha, seed=1, draws=1000) if rise else repeat(None)
    return Counter(
        gate.judge(_report(better, worse, len(sizes), section), section).verdict
        for better, worse in zip(accuracy, harm, strict=False)
    )


def _report(accuracy: Difference, harm: Difference | None, clusters: int, section: Evaluation) -> EvalReport:
    level = ConfidenceInterval(value=0.5, low=0.4, high=0.6)
    margin = section.guard_margin
    guards = [
        Guard(name="no_answer", rule="safe", champion=0.1, candidate=0.1, margin=margin, difference=each)
        for each in ([harm] if harm else [])
    ]
    comparison = Comparison(
        items=2 * clusters,
        clusters=clusters,
        samples_per_item=K,
        champion=level,
        candidate=level,
        difference=accuracy,
        mcnemar_p=None,
        guards=tuple(guards),
        slices=(),
        pass_at=(),
        ungraded_champion=0,
        ungraded_candidate=0,
        cost=None,
    )
    return EvalReport(
        iteration="i",
        champion=NOBODY,
        candidate=NOBODY,
        protocol="p",
        section=section,
        problems=(),
        measurements=(SuiteMeasurement(suite="arithmetic", problems=(), comparison=comparison),),
        bundle=BundleRef(uri="", digest=""),
    )


SECTION = Evaluation(max_standard_error=0.05)


@pytest.mark.parametrize("rho", one_and_variants([0.3, 0.0]))
def test_no_improvement_passes_at_most_at_alpha(rho: float) -> None:
    found = verdicts(simulate(0.5, 0.5, rho, clusters=150, size=2, seed=1), None, SECTION)
    rate = found[Verdict.PASS] / GATES
    print(f"PASS at no improvement, rho {rho}: {rate:.4f}; {dict(found)}")
    assert 0.03 < rate < 0.06  # too low would be a gate that refuses everything
    assert found[Verdict.INCONCLUSIVE] / GATES < 0.05


@pytest.mark.parametrize("rho", one_and_variants([0.3, 0.0]))
def test_ten_points_are_found(rho: float) -> None:
    found = verdicts(simulate(0.45, 0.55, rho, clusters=150, size=2, seed=2), None, SECTION)
    print(f"PASS at +10 points, rho {rho}: {found[Verdict.PASS] / GATES:.4f}")
    assert found[Verdict.PASS] / GATES > 0.8


@pytest.mark.parametrize(("harm", "lowest", "highest"), [(0.03, 0.02, 0.06), (0.0, 0.8, 1.0)])
def test_guards_hold_at_no_harm_and_object_at_the_margin(harm: float, lowest: float, highest: float) -> None:
    gain = simulate(0.4, 0.6, 0.3, clusters=400, size=2, seed=4)
    rise = simulate(0.06, 0.06 + harm, 0.3, clusters=400, size=2, seed=5)
    found = verdicts(gain, rise, SECTION)
    print(f"PASS at a true rise of {harm} in a guard: {found[Verdict.PASS] / GATES:.4f}; {dict(found)}")
    assert lowest < found[Verdict.PASS] / GATES < highest


@pytest.mark.parametrize("clusters", [50, 250])
@pytest.mark.parametrize("rho", one_and_variants([0.3, 0.0, 0.7]))
def test_intervals_cover_the_truth(clusters: int, rho: float) -> None:
    sums, sizes = simulate(0.45, 0.55, rho, clusters, size=2, seed=6)
    found = statistics.paired(sums, sizes, 0.05, seed=1, draws=2)
    coverage = sum(each.low <= 0.1 <= each.high for each in found) / len(found)
    print(f"coverage, {clusters} clusters, rho {rho}: {coverage:.4f}")
    assert 0.94 <= coverage <= 0.96
