"""The plan against the gate itself: what the plan refuses never passes, what it lets through can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evals.gate import Verdict
from evals.power import EMBEDDED_MODEL, UNKNOWN_MODEL, Variance, plan, shortfalls
from evals.statistics import mean_and_standard_error, reach
from pipeline.recipe import Evaluation
from tests.suites import embedded_suite


@pytest.mark.parametrize("clusters", [29, 30, 58, 59, 97, 98, 99, 150])
@pytest.mark.parametrize("margin", [0.03, 0.05])
def test_a_guard_that_cannot_be_held_is_refused(kit: Any, clusters: int, margin: float) -> None:
    section = kit.section(items=2 * clusters, guard_margin=margin, max_standard_error=0.2)
    items = kit.suite(section)
    flawless = {"no_answer": 0.0, "cut": 0.0}
    old, new = (kit.arm(name, section, items, skill, **flawless) for name, skill in (("old", 0.2), ("new", 0.9)))
    passes = kit.judge(section, items, old, new).verdict is Verdict.PASS
    assert passes is not bool(shortfalls(items, section, UNKNOWN_MODEL))


def test_a_refusal_says_what_would_do(kit: Any) -> None:
    section = kit.section(items=60, guard_margin=0.03, max_standard_error=0.03)
    short = shortfalls(kit.suite(section), section, UNKNOWN_MODEL)
    assert "Raise evaluation.items to 195" in short[0]
    assert "until there are 99 clusters" in short[1]
    enough = section.model_copy(update={"items": 198})
    assert shortfalls(kit.suite(enough), enough, UNKNOWN_MODEL) == []


@pytest.mark.parametrize("changes", [{"guard_margin": 0.0}, {"alpha": 0.0}, {"alpha": 1.0}, {"items": 1}])
def test_limits_that_nothing_can_keep_are_refused(changes: dict[str, Any]) -> None:
    section = Evaluation(**changes)
    assert shortfalls(embedded_suite(section), section, UNKNOWN_MODEL)


def test_the_defaults_have_power_enough() -> None:
    section = Evaluation()
    assert shortfalls(embedded_suite(section), section, UNKNOWN_MODEL) == []
    assert plan(embedded_suite(section), section, UNKNOWN_MODEL).gain == pytest.approx(0.0465, abs=5e-4)


@pytest.mark.parametrize(("variance", "k"), [(UNKNOWN_MODEL, 4), (EMBEDDED_MODEL, 2), (Variance(0.2, 0.1), 1)])
def test_the_planned_gain_is_shown_four_times_in_five(kit: Any, variance: Variance, k: int) -> None:
    section = kit.section(items=400, samples_per_item=k)
    planned = plan(kit.suite(section, 1), section, variance)
    rng = np.random.default_rng(7)
    noise = rng.normal(0, np.sqrt(variance.between + variance.within / k), (4000, 400))
    mean, error = mean_and_standard_error(k * (planned.gain + noise), np.full(400, float(k)))
    below, _ = reach(mean, error, 400, section.alpha)
    assert error.mean() == pytest.approx(planned.standard_error, rel=0.02)
    assert np.mean(mean - below > 0) == pytest.approx(0.8, abs=0.03)
