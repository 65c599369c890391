"""How often the gate errs, over thousands of simulated evaluations with known truth (seeded, so never flaky)."""

import numpy as np
import pytest

from benchmarks.evaluation_gates import at_the_margin, drawn, improves, keeps
from evals import statistics

pytestmark = pytest.mark.slow

GATES, FEW, K, ALPHA = 3000, 400, 4, 0.05
"""Few are enough to see the power, for which each gate is bootstrapped."""


def test_the_simulation_decides_as_the_gate_does() -> None:
    assert at_the_margin(small=True)["gate_decisions_equal"] == 1


@pytest.mark.parametrize(
    ("gain", "gates", "items", "lowest", "highest"), [(0.0, GATES, 300, 0.03, 0.06), (0.1, FEW, 100, 0.88, 0.98)]
)
def test_an_improvement_is_shown_as_often_as_promised(
    gain: float, gates: int, items: int, lowest: float, highest: float
) -> None:
    """No improvement at most at alpha (too low would be a gate that refuses everything), and ten points mostly."""
    counts = drawn(np.random.default_rng(1), gates, items, K, (0.5 - gain / 2, 0.5 + gain / 2), size=2)
    assert lowest < improves(counts, ALPHA, seed=1).mean() < highest


@pytest.mark.parametrize(
    ("harm", "gates", "items", "lowest", "highest"), [(0.03, 2000, 800, 0.02, 0.06), (0.0, FEW, 400, 0.9, 0.99)]
)
def test_guards_hold_at_no_harm_and_object_at_the_margin(
    harm: float, gates: int, items: int, lowest: float, highest: float
) -> None:
    counts = drawn(np.random.default_rng(5), gates, items, K, (0.94, 0.94 - harm), size=2)
    assert lowest < keeps(counts, 0.03, ALPHA, seed=1).mean() < highest


@pytest.mark.parametrize("clusters", [50, 250])
def test_intervals_cover_the_truth(clusters: int) -> None:
    counts = drawn(np.random.default_rng(6), GATES, 2 * clusters, K, (0.45, 0.55), size=2)
    found = statistics.paired(*counts.sums(), ALPHA, seed=1, draws=2)
    assert 0.94 <= sum(each.low <= 0.1 <= each.high for each in found) / len(found) <= 0.96
