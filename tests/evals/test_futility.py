"""Conditional power against its own definition by simulation, and what a stop may and may not do."""

from __future__ import annotations

import numpy as np
import pytest

from evals.futility import SHARES, asking_order, conditional_power, design_effect, futile, looks, stoppable
from evals.measurements import FutilityLook, FutilityStop
from evals.statistics import mean_and_standard_error, reach
from evals.suites import Suite
from pipeline.recipe import Evaluation


def passes(sums: np.ndarray, alpha: float) -> np.ndarray:
    mean, error = mean_and_standard_error(sums, np.ones(sums.shape[-1]))
    return mean - reach(mean, error, sums.shape[-1], alpha)[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 0.0025])
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_conditional_power_is_the_share_that_will_pass(alpha: float, share: float) -> None:
    rng = np.random.default_rng(1)
    clusters, effect = 400, 0.14
    seen = int(share * clusters)
    for shift in (-0.1, 0.05, 0.2):
        first = rng.normal(shift, 1, seen)
        predicted = float(conditional_power(first, np.ones(seen), clusters, effect, alpha))
        rest = rng.normal(effect, first.std(ddof=1), (20_000, clusters - seen))
        simulated = passes(np.concatenate([np.broadcast_to(first, (20_000, seen)), rest], axis=1), alpha).mean()
        assert predicted == pytest.approx(simulated, abs=0.015)


def test_large_clusters_weigh_by_their_samples() -> None:
    rng = np.random.default_rng(2)
    small = rng.normal(0.05, 1, 100)
    assert conditional_power(7 * small, np.full(100, 7.0), 200, 0.1, 0.05) == pytest.approx(
        float(conditional_power(small, np.ones(100), 200, 0.1, 0.05))
    )


def test_experiments_are_judged_apart() -> None:
    sums = np.random.default_rng(3).normal(0, 1, (5, 60))
    together = conditional_power(sums, np.ones(60), 100, 0.2, 0.05)
    assert together.shape == (5,)
    assert together.tolist() == [float(conditional_power(row, np.ones(60), 100, 0.2, 0.05)) for row in sums]


@pytest.mark.parametrize(("same", "power"), [(0.0, 1.0), (1.0, 1.0), (-1.0, 0.0)])
def test_clusters_that_all_agree_have_an_answer(same: float, power: float) -> None:
    assert float(conditional_power(np.full(50, same), np.ones(50), 100, 0.1, 0.05)) == power


def test_the_order_is_fair_and_the_same_again() -> None:
    names = [f"c{n:03d}" for n in range(200)]
    order = asking_order(names * 3, 7)
    assert sorted(order) == names
    assert order == asking_order(names[::-1], 7)
    assert order != asking_order(names, 8)
    early = [name < "c100" for seed in range(50) for name in asking_order(names, seed)[:20]]
    assert np.mean(early) == pytest.approx(0.5, abs=0.05)


def test_looks_wait_for_enough_clusters() -> None:
    assert looks(1000) == (100, 200, 400, 600, 800)
    assert looks(100) == (40, 60, 80)
    assert looks(30) == ()
    assert len(SHARES) == 5


def test_one_hopeless_target_of_all_is_enough() -> None:
    assert futile([0.05, 0.9], "all") and not futile([0.05, 0.9], "any")
    assert futile([0.05, 0.02], "any") and not futile([0.1, 0.9], "all")
    assert not futile([0.0], "cost") and not futile([], "any")


def test_a_stop_tells_its_look_and_no_estimate() -> None:
    target = FutilityLook(suite="gsm8k", clusters=40, planned=100, power=0.043)
    reason = FutilityStop(look=3, of=5, targets=(target,)).reason()
    assert "at look 3 of 5 (gsm8k: 40 of 100 clusters asked, 4.3% chance" in reason
    assert {*FutilityLook.model_fields} == {"suite", "clusters", "planned", "power"}


def suites_of(*sections: dict[str, object], **changes: object) -> tuple[Evaluation, list[Suite]]:
    section = Evaluation.model_validate({"suites": list(sections), **changes})
    return section, [Suite(name=each.name, items=()) for each in section.asked]


TARGET = {"kind": "arithmetic"}
FILE = {"kind": "jsonl", "name": "own", "path": "own.jsonl"}
JUDGED = {"kind": "judged", "name": "liked", "over": "arithmetic"}
LIBRARY = {"kind": "inspect", "name": "lib", "task": "a.py@b"}


@pytest.mark.parametrize(
    ("sections", "changes", "expected"),
    [
        ([TARGET], {}, ["arithmetic"]),
        ([TARGET], {"futility": False}, []),
        ([TARGET], {"improve": "cost"}, []),
        ([TARGET, {**FILE, "role": "guard"}], {}, ["arithmetic"]),
        ([TARGET, FILE, JUDGED], {}, ["own"]),
        ([TARGET, LIBRARY], {"serving": {"kind": "vllm"}}, ["arithmetic"]),
        ([TARGET, FILE], {"improve": "any"}, ["arithmetic", "own"]),
        ([TARGET, LIBRARY], {"serving": {"kind": "vllm"}, "improve": "any"}, []),
        ([FILE, TARGET, {**JUDGED, "over": "own", "role": "target"}], {"improve": "any"}, []),
    ],
)
def test_only_targets_with_checks_of_our_own_stop(
    sections: list[dict[str, object]], changes: dict[str, object], expected: list[str]
) -> None:
    section, suites = suites_of(*sections, **changes)
    assert [each.name for each in stoppable(section, suites)] == expected


def test_a_suite_that_decides_nothing_stops_nothing() -> None:
    section, (suite,) = suites_of(TARGET)
    assert stoppable(section, [suite.model_copy(update={"advisory": "reviewers do not agree"})]) == []


def test_stopping_saves_answers_and_loses_hardly_any_power() -> None:
    """At 5% and a power of 0.8, over 2,000 trials of 400 clusters."""
    rng, clusters, alpha = np.random.default_rng(4), 400, 0.05
    effect = 2.487 / np.sqrt(clusters)
    for true, used, lost in ((0.0, 0.80, 0.01), (-effect, 0.55, 0.0), (effect, 1.0, 0.01)):
        sums = rng.normal(true, 1, (2000, clusters))
        asked = np.full(2000, clusters)
        for at in reversed(looks(clusters)):
            first, sizes = sums[:, :at], np.ones(at)
            planned = design_effect(first, sizes, clusters, alpha)
            asked[conditional_power(first, sizes, clusters, planned, alpha) < 0.1] = at
        final = passes(sums, alpha)
        assert asked.mean() / clusters < used + 1e-9
        assert final.mean() - (final & (asked == clusters)).mean() <= lost
