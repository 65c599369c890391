from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evals import gate
from evals.gate import Verdict
from evals.records import EvalArm, EvalReport, ItemResult, SuiteMeasurement
from pipeline.rewards.verifiers import Outcome


def test_a_better_candidate_passes(kit: Any, good: tuple[Any, ...]) -> None:
    verdict = kit.judge(*good)
    assert verdict.verdict is Verdict.PASS
    assert len(verdict.reasons) == 6, "the improvement, and five guards"
    assert (verdict.champion, verdict.candidate) == (good[2].model, good[3].model)


@pytest.mark.slow
def test_a_worse_and_an_equal_candidate_fail(kit: Any, good: tuple[Any, ...]) -> None:
    section, suite, old, new = good
    for champion, candidate in ((new, old), (old, kit.arm("twin", section, suite, 0.4))):
        verdict = kit.judge(section, suite, champion, candidate)
        assert verdict.verdict is Verdict.FAIL
        assert any("improvement not shown" in reason for reason in verdict.reasons)


def test_a_candidate_without_effect_is_named_so(
    kit: Any, good: tuple[Any, ...], with_sample: Callable[..., EvalArm]
) -> None:
    section, suite, old, _ = good
    verdict = kit.judge(section, suite, old, old)
    assert (verdict.verdict, verdict.reasons) == (
        Verdict.FAIL, ("no effect: all 800 answers equal the champion's",),
    )  # fmt: skip
    reasons = kit.judge(section, suite, old, with_sample(old, text="other")).reasons
    assert reasons[0].startswith("arithmetic: improvement not shown")
    few = old.model_copy(update={"results": old.results[1:]})
    assert kit.judge(section, suite, few, few).verdict is Verdict.INCONCLUSIVE


def _results(change: Callable[[tuple[ItemResult, ...]], tuple[ItemResult, ...]]) -> Callable[[EvalArm], EvalArm]:
    return lambda arm: arm.model_copy(update={"results": change(arm.results)})


def _protocol(**changes: object) -> Callable[[EvalArm], EvalArm]:
    return lambda arm: arm.model_copy(update={"protocol": arm.protocol.model_copy(update=changes)})


def _answered(arm: EvalArm, **changes: object) -> EvalArm:
    return _protocol(answers=arm.protocol.answers.model_copy(update=changes))(arm)


def _stranger(result: ItemResult) -> ItemResult:
    return result.model_copy(update={"id": "stranger"})


BROKEN: dict[str, tuple[Callable[[EvalArm], EvalArm], str]] = {
    "drop": (_results(lambda each: each[1:]), "missing"),
    "repeat": (_results(lambda each: (*each, each[0])), "repeated"),
    "add": (_results(lambda each: (*each, _stranger(each[0]))), "extra"),
    "rename": (_results(lambda each: (_stranger(each[0]), *each[1:])), "missing"),
    "empty": (_results(lambda each: ()), "empty"),
    "short": (
        _results(lambda each: (each[0].model_copy(update={"samples": each[0].samples[1:]}), *each[1:])),
        "without exactly",
    ),
    "verifier": (_protocol(verifier="v/2"), "different protocols: verifier"),
    "items": (_protocol(suite_digest="u"), "suite digest"),
    "sampling": (lambda arm: _answered(arm, temperature=0.1), "not sampled as the recipe asks"),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("which", ["champion", "candidate", "both"])
def test_bad_runs_are_inconclusive(kit: Any, good: tuple[Any, ...], broken: str, which: str) -> None:
    section, suite, old, new = good
    break_it, reason = BROKEN[broken]
    old = break_it(old) if which in ("champion", "both") else old
    new = break_it(new) if which in ("candidate", "both") else new
    verdict = kit.judge(section, suite, old, new)
    if which == "both" and broken == "verifier":
        assert verdict.verdict is Verdict.PASS  # the same protocol in both arms is what is asked for
        return
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert any(reason in each for each in verdict.reasons), verdict.reasons


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stop_ids": (3, 5)}, "stop_ids (champion 3, candidate 3 5)"),
        ({"dtype": "bfloat16"}, "dtype (champion float32, candidate bfloat16)"),
        ({"engine": "vllm"}, "engine (champion transformers, candidate vllm)"),
        ({"tokens_digest": "b" * 64}, f"tokens_digest (champion {'a' * 12}, candidate {'b' * 12})"),
    ],
)
def test_arms_that_were_decoded_differently_are_inconclusive(
    kit: Any, good: tuple[Any, ...], changes: dict[str, object], reason: str
) -> None:
    section, suite, old, new = good
    decoding = new.protocol.answers.decoding.model_copy(update=changes)
    verdict = kit.judge(section, suite, old, _answered(new, decoding=decoding))
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert len(verdict.reasons) == 1
    assert f"the arms ran under different protocols: {reason}" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("changes", "items_per_cluster", "reason"),
    [
        ({"items": 29}, 1, "items are too few"),
        ({"items": 116}, 4, "29 clusters are too few (at least 30)"),
        ({"max_standard_error": 0.001}, 2, "standard error"),
        ({"alpha": 0.0}, 2, "alpha is"),
        ({"alpha": 0.5}, 2, "alpha is"),
    ],
)
def test_thin_evidence_is_inconclusive(kit: Any, changes: dict[str, Any], items_per_cluster: int, reason: str) -> None:
    section = kit.section(**changes)
    suite = kit.suite(section, items_per_cluster)
    verdict = kit.judge(section, suite, kit.arm("a", section, suite, 0.05), kit.arm("b", section, suite, 0.95))
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert any(reason in r for r in verdict.reasons), verdict.reasons


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda items: (), "0 items are too few"),
        (lambda items: (*items[1:], items[1]), "the suite: 1 repeated item ids"),
    ],
)
def test_bad_suite_is_inconclusive_where_both_arms_agree_too(kit: Any, edit: Callable[[Any], Any], reason: str) -> None:
    section = kit.section()
    suite = kit.suite(section)
    suite = suite.model_copy(update={"items": edit(suite.items)})
    verdict = kit.judge(section, suite, kit.arm("old", section, suite, 0.4), kit.arm("new", section, suite, 0.6))
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert any(reason in r for r in verdict.reasons), verdict.reasons


@pytest.mark.parametrize("outcome", [Outcome.timeout, Outcome.error])
def test_failed_checks_are_tolerated_up_to_one_percent(
    kit: Any, good: tuple[Any, ...], with_sample: Callable[..., EvalArm], outcome: Outcome
) -> None:
    section, suite, old, new = good  # 800 samples in each arm
    for arms in ((with_sample(old, 8, outcome=outcome), new), (old, with_sample(new, 8, outcome=outcome))):
        assert kit.judge(section, suite, *arms).verdict is Verdict.PASS
    for arms in ((with_sample(old, 9, outcome=outcome), new), (old, with_sample(new, 9, outcome=outcome))):
        verdict = kit.judge(section, suite, *arms)
        assert verdict.verdict is Verdict.INCONCLUSIVE
        assert any("9 of 800 samples ungraded" in reason for reason in verdict.reasons)


def _with(
    report: EvalReport, difference: dict[str, float], guard: dict[str, float], margin: float = 0.05, **fields: Any
) -> EvalReport:
    measured = report.measurements[0]
    comparison = measured.comparison
    assert comparison is not None
    first, *others = comparison.guards
    first = first.model_copy(update={"margin": margin, "difference": first.difference.model_copy(update=guard)})
    changed = comparison.model_copy(
        update={"difference": comparison.difference.model_copy(update=difference), "guards": (first, *others), **fields}
    )
    return report.model_copy(update={"measurements": (measured.model_copy(update={"comparison": changed}),)})


CLEAR = {"value": 0.1, "standard_error": 0.01, "lower": 0.08, "upper": 0.12, "bootstrap_lower": 0.08, "low": 0.07}


@pytest.mark.parametrize(
    ("gain", "rise", "fields", "verdict"),
    [
        (CLEAR, {}, {}, Verdict.PASS),
        ({**CLEAR, "lower": 0.0}, {}, {}, Verdict.INCONCLUSIVE),
        ({**CLEAR, "bootstrap_lower": 0.0}, {}, {}, Verdict.INCONCLUSIVE),
        ({**CLEAR, "lower": -1e-9, "bootstrap_lower": 0.0}, {}, {}, Verdict.FAIL),
        (CLEAR, {}, {"mcnemar_p": 0.049}, Verdict.PASS),
        (CLEAR, {}, {"mcnemar_p": 0.05}, Verdict.INCONCLUSIVE),
        (CLEAR, {"value": 0.03, "upper": 0.05, "bootstrap_upper": 0.049}, {}, Verdict.INCONCLUSIVE),
        (CLEAR, {"value": 0.03, "upper": 0.049, "bootstrap_upper": 0.05}, {}, Verdict.INCONCLUSIVE),
        (CLEAR, {"value": 0.03, "upper": 0.05, "bootstrap_upper": 0.05}, {}, Verdict.FAIL),
        (CLEAR, {"value": 0.03, "upper": 0.054, "bootstrap_upper": 0.054}, {}, Verdict.FAIL),  # its share of the power
        (CLEAR, {"value": 0.03, "upper": 0.056, "bootstrap_upper": 0.056}, {}, Verdict.INCONCLUSIVE),  # not quite
        (CLEAR, {"value": 0.02, "upper": 0.06, "bootstrap_upper": 0.06}, {}, Verdict.INCONCLUSIVE),  # no power
        (CLEAR, {"value": 0.1, "lower": 0.06, "upper": 0.14, "bootstrap_lower": 0.06, "bootstrap_upper": 0.14}, {},
         Verdict.FAIL),  # no power, but harm beyond the margin is shown
        ({**CLEAR, "standard_error": 0.05}, {}, {}, Verdict.PASS),
        ({**CLEAR, "standard_error": 0.0501}, {}, {}, Verdict.INCONCLUSIVE),
        (CLEAR, {}, {"items": 30, "clusters": 30}, Verdict.PASS),
        (CLEAR, {}, {"items": 29}, Verdict.INCONCLUSIVE),
        (CLEAR, {}, {"clusters": 29}, Verdict.INCONCLUSIVE),
    ],
)  # fmt: skip
def test_the_rule_at_its_edges(
    kit: Any, good: tuple[Any, ...], gain: Any, rise: Any, fields: Any, verdict: Verdict
) -> None:
    report = _with(kit.report(*good), gain, rise, **fields)
    assert gate.judge(report, good[0]).verdict is verdict


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", ["value", "standard_error", "low", "high", "lower", "upper", "bootstrap_lower"])
def test_numbers_that_are_not_finite_are_inconclusive(
    kit: Any, good: tuple[Any, ...], field: str, number: float
) -> None:
    report = kit.report(*good)
    broken_reports = (_with(report, {field: number}, {}), _with(report, {}, {field: number}))
    for broken in (*broken_reports, _with(report, {}, {}, mcnemar_p=number)):
        verdict = gate.judge(broken, good[0])
        assert verdict.verdict is Verdict.INCONCLUSIVE
        assert "arithmetic: a number is not finite" in verdict.reasons


def test_changed_thresholds_and_an_empty_report_are_inconclusive(kit: Any, good: tuple[Any, ...]) -> None:
    report = kit.report(*good)
    looser = good[0].model_copy(update={"guard_margin": 0.5})
    assert gate.judge(report, looser).verdict is Verdict.INCONCLUSIVE
    empty = SuiteMeasurement(suite="arithmetic", problems=(), comparison=None)
    nothing = report.model_copy(update={"measurements": (empty,)})
    assert gate.judge(nothing, good[0]).verdict is Verdict.INCONCLUSIVE


def test_a_guard_without_events_needs_enough_clusters(kit: Any) -> None:
    """No defect in 40 clusters does not show that fewer than 3% have one; none in 120 clusters does."""
    for items, expected in ((80, Verdict.INCONCLUSIVE), (240, Verdict.PASS)):
        section = kit.section(items=items, guard_margin=0.03, max_standard_error=0.1)
        suite = kit.suite(section)
        arms = [kit.arm(name, section, suite, skill, 0, 0) for name, skill in (("a", 0.1), ("b", 0.9))]
        assert kit.judge(section, suite, *arms).verdict is expected


def test_one_sample_an_item_is_decided_with_mcnemar(kit: Any) -> None:
    section = kit.section(samples_per_item=1, max_standard_error=0.1)
    suite = kit.suite(section, items_per_cluster=1)
    report = kit.report(section, suite, kit.arm("a", section, suite, 0.2), kit.arm("b", section, suite, 0.8))
    assert 0 < report.measurements[0].comparison.mcnemar_p < 0.001
    assert gate.judge(report, section).verdict is Verdict.PASS


NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-1, 1)
RISE = ("value", "lower", "upper", "bootstrap_lower", "bootstrap_upper")


@pytest.fixture(scope="module")
def good_report(kit: Any, good: tuple[Any, ...]) -> EvalReport:
    return kit.report(*good)


@settings(max_examples=40)
@given(
    gain=st.fixed_dictionaries(dict.fromkeys(CLEAR, NUMBERS)),
    rise=st.fixed_dictionaries(dict.fromkeys(RISE, NUMBERS)),
    alpha=st.floats(0, 1) | st.just(5e-324),
    margin=st.floats(0, 1),
)
@example(CLEAR, {}, 0.5 - 2**-54, 0.03)  # 1 - alpha is 0.5
def test_the_gate_answers_whatever_the_numbers(
    good_report: EvalReport, gain: Any, rise: Any, alpha: float, margin: float
) -> None:
    section = good_report.section.model_copy(update={"alpha": alpha})
    report = _with(good_report.model_copy(update={"section": section}), gain, rise, margin)
    if gate.judge(report, section).verdict is Verdict.PASS:
        assert min(gain["lower"], gain["bootstrap_lower"]) > 0
        assert max(rise.get("upper", 0.0), rise.get("bootstrap_upper", 0.0)) < margin
