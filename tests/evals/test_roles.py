"""The gate over several suites: targets, guards, floors, reports, and what may improve."""

from typing import Any

import pytest

from evals import gate
from evals.gate import Verdict
from evals.records import EvalArm
from pipeline.recipe import Evaluation

pytestmark = pytest.mark.slow


def section(kit: Any, *suites: dict[str, Any], **changes: Any) -> Evaluation:
    named = [
        {"kind": "items", "preset": "arithmetic", "name": f"suite-{n}", "items": 400, **each}
        for n, each in enumerate(suites)
    ]
    return kit.section(suites=named, **changes)


def report(kit: Any, settings: Evaluation, *skills: tuple[float, float], **arms: Any) -> Any:
    evidence = []
    for number, (before, after) in enumerate(skills):
        suite = kit.suite(settings, name=f"suite-{number}")
        old = kit.arm(f"old{number}", settings, suite, before)
        evidence.append((suite, old, kit.arm(f"new{number}", settings, suite, after, **arms)))
    return kit.report_over(settings, *evidence)


def judged(kit: Any, settings: Evaluation, *skills: tuple[float, float], **arms: Any) -> tuple[Verdict, str]:
    """`skills`: of champion and candidate, for each suite."""
    verdict = gate.judge(report(kit, settings, *skills, **arms), settings)
    return verdict.verdict, "\n".join(verdict.reasons)


def test_every_target_must_improve(kit: Any) -> None:
    settings = section(kit, {}, {})
    assert judged(kit, settings, (0.4, 0.6), (0.4, 0.6))[0] is Verdict.PASS
    verdict, reasons = judged(kit, settings, (0.4, 0.6), (0.4, 0.4))
    assert verdict is Verdict.FAIL
    assert "suite-1: improvement not shown" in reasons and "suite-0" not in reasons


def test_a_guard_may_not_lose_more_than_its_margin(kit: Any) -> None:
    settings = section(kit, {}, {"role": "guard", "margin": 0.1})
    assert judged(kit, settings, (0.4, 0.6), (0.5, 0.5))[0] is Verdict.PASS
    verdict, reasons = judged(kit, settings, (0.4, 0.6), (0.7, 0.4))
    assert verdict is Verdict.FAIL and "suite-1: guard failed: score" in reasons
    narrow = section(kit, {}, {"role": "guard", "margin": 0.01})
    verdict, reasons = judged(kit, narrow, (0.4, 0.6), (0.5, 0.5))
    assert verdict is Verdict.INCONCLUSIVE and "suite-1: too little evidence for a guard: score" in reasons


def test_a_report_decides_nothing_whatever_it_shows(kit: Any) -> None:
    settings = section(kit, {}, {"role": "report"})
    assert judged(kit, settings, (0.4, 0.6), (0.9, 0.1))[0] is Verdict.PASS
    few = section(kit, {}, {"role": "report", "items": 5})
    small = report(kit, few, (0.4, 0.6), (0.5, 0.5))
    assert small.measurements[1].comparison.clusters == 3, "shown, whatever its size"
    few = section(kit, {}, {"role": "report", "items": 2})
    whole = report(kit, few, (0.4, 0.6), (0.5, 0.5))
    assert whole.measurements[1].comparison is None and "too few" in whole.measurements[1].problems[0]
    assert gate.judge(whole, few).verdict is Verdict.PASS


@pytest.mark.parametrize("role", ["target", "guard"])
def test_a_gating_suite_without_comparison_is_inconclusive(kit: Any, role: str) -> None:
    settings = section(kit, {}, {"role": role, "items": 20})
    verdict, reasons = judged(kit, settings, (0.4, 0.6), (0.4, 0.6))
    assert verdict is Verdict.INCONCLUSIVE and "suite-1: 20 items are too few" in reasons


@pytest.mark.parametrize(
    ("floor", "verdict", "words"),
    [
        (0.5, Verdict.PASS, "floor reached"),
        (0.6, Verdict.INCONCLUSIVE, "too little evidence for a floor"),
        (0.7, Verdict.FAIL, "floor not reached"),
    ],
)
def test_a_floor_holds_where_it_is_shown_to(kit: Any, floor: float, verdict: Verdict, words: str) -> None:
    assert judged(kit, section(kit, {"floor": floor}), (0.4, 0.6))[0] is verdict
    assert f"suite-0: {words}: " in judged(kit, section(kit, {"floor": floor}), (0.4, 0.6))[1]


def defective(arm: EvalArm, defect: str, items: int) -> EvalArm:
    """The first sample of so many items has the defect."""
    results = tuple(
        result.model_copy(
            update={"samples": (result.samples[0].model_copy(update={"defects": (defect,)}), *result.samples[1:])}
        )
        if number < items
        else result
        for number, result in enumerate(arm.results)
    )
    return arm.model_copy(update={"results": results})


@pytest.mark.parametrize(
    ("defect", "items", "verdict"),
    [
        ("refusal", 8, Verdict.PASS),
        ("refusal", 200, Verdict.FAIL),
        ("pii", 8, Verdict.PASS),  # 0.5% of 1,600: not shown to be more
        ("pii", 60, Verdict.FAIL),
    ],
)
def test_defects_of_the_text_are_guarded(kit: Any, defect: str, items: int, verdict: Verdict) -> None:
    settings = section(kit, {})
    suite = kit.suite(settings, name="suite-0")
    old, new = kit.arm("old", settings, suite, 0.4), defective(kit.arm("new", settings, suite, 0.6), defect, items)
    assert kit.judge(settings, suite, old, new).verdict is verdict
    assert kit.judge(settings, suite, defective(old, defect, items), new).verdict is Verdict.PASS


def test_pass_at_k_is_the_share_of_draws_with_a_right_one(kit: Any) -> None:
    settings = section(kit, {"pass_at": [1, 2, 4, 8], "items": 60})
    whole = report(kit, settings, (0.3, 0.6))
    (measured,) = whole.measurements
    assert [each.k for each in measured.comparison.pass_at] == [1, 2, 4], "there are four samples"
    one, _, four = measured.comparison.pass_at
    assert one.candidate == pytest.approx(measured.comparison.candidate.value)
    suite = kit.suite(settings, name="suite-0")
    arm = kit.arm("new0", settings, suite, 0.6)
    any_right = sum(any(s.outcome.score == 1 for s in result.samples) for result in arm.results)
    assert four.candidate == pytest.approx(any_right / 60)
