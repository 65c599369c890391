"""The plan against the gate itself: what the plan refuses never passes, what it lets through can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evals import power
from evals.gate import Verdict
from evals.power import EMBEDDED_MODEL, UNKNOWN_MODEL, AnswerCost, Variance, plan, shortfalls
from evals.statistics import mean_and_standard_error, reach
from evals.suites import Suite
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome
from tests.suites import embedded_suite


def several(kit: Any, roles: dict[str, str], count: int = 400, **changes: Any) -> tuple[list[Suite], Evaluation]:
    """Suites of these names and roles, of items that are clusters of their own."""
    suites = [
        {"kind": "arithmetic", "name": name, "role": role, "items": count, "margin": 0.05}
        for name, role in roles.items()
    ]
    section = kit.section(suites=suites, **changes)
    return [kit.suite(section, 1, name, count) for name in roles], section


@pytest.mark.parametrize("clusters", [29, 30, 58, 59, 97, 98, 99, 150])
@pytest.mark.parametrize("margin", [0.03, 0.05])
def test_a_guard_that_cannot_be_held_is_refused(kit: Any, clusters: int, margin: float) -> None:
    section = kit.section(items=2 * clusters, guard_margin=margin, max_standard_error=0.2)
    items = kit.suite(section)
    flawless = {"no_answer": 0.0, "cut": 0.0}
    old, new = (kit.arm(name, section, items, skill, **flawless) for name, skill in (("old", 0.2), ("new", 0.9)))
    passes = kit.judge(section, items, old, new).verdict is Verdict.PASS
    assert passes is not bool(shortfalls([items], section, UNKNOWN_MODEL))


def test_a_refusal_says_what_would_do(kit: Any) -> None:
    section = kit.section(items=60, guard_margin=0.03, max_standard_error=0.03)
    short = shortfalls([kit.suite(section)], section, UNKNOWN_MODEL)
    assert "suite arithmetic: 60 items" in short[0] and "Raise evaluation.suites.0.items, to 195" in short[0]
    assert "until there are 99 clusters" in short[1]
    enough = kit.section(items=198, guard_margin=0.03, max_standard_error=0.03)
    assert shortfalls([kit.suite(enough)], enough, UNKNOWN_MODEL) == []


def test_a_refusal_names_the_suite_it_is_about(kit: Any) -> None:
    suites, section = several(kit, {"one": "target", "two": "guard", "three": "report"}, count=20)
    short = shortfalls(suites, section, UNKNOWN_MODEL)
    assert [reason.split(":")[0] for reason in short] == ["suite one"] * 3 + ["suite two"] * 2  # a guard has no gain
    assert all("evaluation.suites.1.items" in reason for reason in short[3:])
    assert shortfalls(suites[2:], section, UNKNOWN_MODEL) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"guard_margin": 0.0},
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"luck_per_year": 0.0},
        {"improve": "cost", "cheaper_by": 1.0},
        {"suites": [{"kind": "arithmetic", "items": 1}]},
        {"suites": [{"kind": "arithmetic", "floor": 1.0}]},
    ],
)
def test_limits_that_nothing_can_keep_are_refused(changes: dict[str, Any]) -> None:
    section = Evaluation.model_validate(changes)
    assert len(shortfalls([embedded_suite(section)], section, UNKNOWN_MODEL)) >= 1


def test_the_defaults_have_power_enough() -> None:
    section = Evaluation()
    assert shortfalls([embedded_suite(section)], section, UNKNOWN_MODEL) == []
    (planned,) = plan([embedded_suite(section)], section, {}).suites
    assert planned.gain == pytest.approx(0.0683, abs=5e-4)  # at 0.0025; at 0.05 it would be 0.0465
    (alone,) = plan([embedded_suite(section)], section.model_copy(update={"luck_per_year": None}), {}).suites
    assert alone.gain == pytest.approx(0.0465, abs=5e-4)
    assert (planned.holds, planned.power, planned.margin) == (None, None, None)


@pytest.mark.parametrize(("variance", "k"), [(UNKNOWN_MODEL, 4), (EMBEDDED_MODEL, 2), (Variance(0.2, 0.1), 1)])
@pytest.mark.parametrize("luck", [0.05, None])
def test_the_planned_gain_is_shown_four_times_in_five(kit: Any, variance: Variance, k: int, luck: float | None) -> None:
    section = kit.section(items=400, samples_per_item=k, luck_per_year=luck)
    (planned,) = plan([kit.suite(section, 1)], section, {"arithmetic": variance}).suites
    rng = np.random.default_rng(7)
    noise = rng.normal(0, np.sqrt(variance.between + variance.within / k), (4000, 400))
    mean, error = mean_and_standard_error(k * (planned.gain + noise), np.full(400, float(k)))
    below, _ = reach(mean, error, 400, section.improvement_alpha())
    assert error.mean() == pytest.approx(planned.standard_error, rel=0.02)
    assert np.mean(mean - below > 0) == pytest.approx(0.8, abs=0.03)


def test_margins_that_hold_let_the_harmless_through_together(kit: Any) -> None:
    """Three guards at the margin that the plan says they hold: the scores pass together with at least 0.8."""
    suites, section = several(kit, {"t": "target", "a": "guard", "b": "guard", "c": "guard"})
    planned = plan(suites, section, {})
    assert planned.guards == 4 * 4 + 3
    rng, passed = np.random.default_rng(3), np.ones(4000, dtype=bool)
    for each in planned.suites[1:]:
        noise = rng.normal(0, np.sqrt(0.1 + 0.3 / 4), (4000, 400))
        mean, error = mean_and_standard_error(4 * noise, np.full(400, 4.0))
        passed &= mean + reach(mean, error, 400, section.alpha)[1] < each.holds
    assert passed.mean() == pytest.approx(0.8 ** (3 / 19), abs=0.02)


def test_the_power_of_all_margins_is_their_product(kit: Any) -> None:
    roles = {"t": "target", **{f"g{n}": "guard" for n in range(5)}}
    five = plan(*several(kit, roles, count=850), {})
    each = five.suites[1].power
    assert each == pytest.approx(0.97, abs=0.01)
    assert five.power == pytest.approx(each**5)
    assert plan(*several(kit, {"t": "target", "g": "guard"}, count=850), {}).power == pytest.approx(each)
    assert plan(*several(kit, {"t": "target", "g": "report"}, count=850), {}).power == 1


def test_a_target_guards_too_where_another_may_improve(kit: Any) -> None:
    for improve, guards, gain in (("all", 8, True), ("any", 10, True), ("cost", 10, False)):
        planned = plan(*several(kit, {"one": "target", "two": "target"}, improve=improve), {})
        assert (planned.guards, planned.suites[0].gain is not None) == (guards, gain)
        assert (planned.suites[0].holds is None) is (improve == "all")
    either = plan(*several(kit, {"one": "target", "two": "target"}, improve="any"), {}).suites[0].gain
    both = plan(*several(kit, {"one": "target", "two": "target"}), {}).suites[0].gain
    assert either is not None and both is not None and either > both  # half of the level for each


def test_the_plan_counts_the_guards_that_the_gate_has(kit: Any) -> None:
    roles = {"t": "target", "g": "guard"}
    for improve in ("all", "any", "cost"):
        suites, section = several(kit, roles, count=60, improve=improve, luck_per_year=None)
        evidence = [
            (suite, kit.arm("old", section, suite, 0.5), kit.arm("new", section, suite, 0.6)) for suite in suites
        ]
        compared = [each.comparison for each in kit.report_over(section, *evidence).measurements]
        gate = sum(guard.rule == "safe" for each in compared for guard in each.guards)
        assert plan(suites, section, {}).guards == gate


def drawn(
    between: float, k: int, size: int, seed: int, coupled: bool, mean: float = 0.0
) -> tuple[np.ndarray, list[str]]:
    """Paired gains of 3,000 items in clusters of `size` that share their item difference."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(3000 // size), size)
    shift = rng.choice([-1, 1], 3000 // size)[clusters] * np.sqrt(between)
    chances = 0.5 - shift[:, None] / 2, 0.5 + mean + shift[:, None] / 2
    first = rng.random((3000, k))
    second = first if coupled else rng.random((3000, k))
    return (second < chances[1]).astype(float) - (first < chances[0]), [f"c{c:04d}" for c in clusters]


@pytest.mark.parametrize(("between", "coupled"), [(0.01, False), (0.01, True), (0.1, False), (0.0, False)])
def test_variances_are_found_in_an_earlier_evaluation(between: float, coupled: bool) -> None:
    gains, clusters = drawn(between, 4, 1, 1, coupled)
    root = np.sqrt(between)
    # Of one sample within an item: both arms' binomial variances, less twice their covariance.
    within = root - between if coupled else 0.5 - between / 2
    found = power.measured(gains, clusters)
    assert found.within == pytest.approx(within, abs=0.02)
    assert found.between == pytest.approx(between, abs=0.012)


def test_items_that_fail_together_lie_between_items() -> None:
    apart, alone = drawn(0.05, 4, 1, 2, False)
    together, clusters = drawn(0.05, 4, 10, 2, False)
    assert power.measured(together, clusters).between > 4 * power.measured(apart, alone).between
    error = mean_and_standard_error(together.reshape(300, -1).sum(axis=1), np.full(300, 40.0))[1]
    found = power.measured(together, clusters)
    assert np.sqrt((found.between + found.within / 4) / 3000) == pytest.approx(float(error), rel=1e-9)


def test_one_sample_of_each_item_says_nothing_of_more() -> None:
    gains, clusters = drawn(0.05, 1, 1, 3, False)
    found = power.measured(gains, clusters)
    assert found.within == 0 and found.between == pytest.approx(gains.var(ddof=1))


@pytest.mark.slow
def test_two_finished_runs_have_variances(kit: Any) -> None:
    section = kit.section()
    items = kit.suite(section)
    exact, arms = 0, ()
    for name in "abcdef":
        arms = kit.arm(name, section, items, 0.5), kit.arm(name, section, items, 0.6)
        variance = power.variance_of(items, arms)
        (planned,) = plan([items], section, {"arithmetic": variance}).suites
        observed = kit.report(section, items, *arms).measurements[0].comparison.difference.standard_error
        if variance.between > 0:
            assert planned.standard_error == pytest.approx(observed)
            exact += 1
        else:  # by chance less than what the samples explain: the plan is on the safe side
            assert planned.standard_error > observed
    assert exact
    cut = arms[0].model_copy(update={"results": arms[0].results[1:]})
    with pytest.raises(ValueError, match="Take a bundle"):
        power.variance_of(items, (arms[0], cut))


def test_an_ungraded_sample_counts_against_the_candidate(kit: Any, with_sample: Any) -> None:
    section = kit.section()
    items = kit.suite(section)
    old = kit.arm("old", section, items, 0.5)
    failed = with_sample(old, 200, outcome=Outcome.error)
    right = with_sample(old, 200, outcome=Outcome.correct)
    wrong = with_sample(old, 200, outcome=Outcome.wrong)
    assert power.variance_of(items, (failed, old)) == power.variance_of(items, (right, old))
    assert power.variance_of(items, (old, failed)) == power.variance_of(items, (old, wrong))


@pytest.mark.parametrize(
    ("variance", "price", "samples"),
    [(Variance(0.1, 0.3), 0, 1), (Variance(0.1, 0.3), 12, 6), (Variance(0.3, 0.1), 1, 1), (Variance(0, 0.3), 5, None)],
)
def test_dear_items_deserve_more_samples(variance: Variance, price: float, samples: int | None) -> None:
    assert power.best_samples(variance, price) == samples
    if samples and price:  # nothing else shows more for the same money
        errors = {k: (variance.between + variance.within / k) * (price + k) for k in range(1, 40)}
        assert min(errors, key=errors.__getitem__) == samples


def test_the_champions_answers_are_paid_for_once(kit: Any) -> None:
    planned = plan(*several(kit, {"t": "target", "r": "report"}, count=100), {})
    first, later = (power.cost(planned, AnswerCost(50, 1000, 3), arms) for arms in (2, 1))
    assert (first.answers, first.tokens) == (1600, 80_000)
    assert first.hours == pytest.approx(80 / 3600) and first.usd == pytest.approx(240 / 3600)
    assert later.answers == first.answers / 2
    assert power.cost(planned, AnswerCost(50), 1)[2:] == (None, None)
