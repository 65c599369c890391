"""Each rule on a history that breaks it and on its neighbour that doesn't, what holds for any history, a real run."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.recipe import Sentinel
from pipeline.training.result import HealthFinding
from pipeline.training.sentinel import RULES, SOLVED, WINDOW, HealthMonitor, review

Row = dict[str, float]
Shape = Callable[[int], float]
STEPS = 20
SETTINGS = Sentinel()

HEALTHY: Row = {
    "loss": -0.05, "grad_norm": 0.4, "reward": 0.5, "reward_std": 0.4, "frac_reward_zero_std": 0.4, "entropy": 0.5,
    "kl": 0.02, "completions/mean_length": 100.0, "completions/clipped_ratio": 0.02, "accuracy": 0.5, "abstained": 0.0,
    "component/correct": 0.95, "component/format": 0.05, "text/prefix_share": 0.1, "text/distinct_2": 0.6,
    "text/refusals": 0.0, "text/answered": 0.95, "sampling/sampling_logp_difference/mean": 0.01,
}  # fmt: skip
VALIDATED: Row = {
    "held_out/accuracy": 0.5, "held_out/answered": 0.95, "held_out/length": 100.0, "held_out/truncated": 0.02,
    "held_out/kl": 0.02, "held_out/prefix_share": 0.1, "held_out/distinct_2": 0.6,
}  # fmt: skip


def history(changed: Mapping[str, float | Shape] | None = None, steps: int = STEPS) -> list[Row]:
    """A healthy training, validated first and every five steps, but for the metrics given: a value or f(step)."""
    rows: list[Row] = []
    for step in range(1, steps + 1):
        row = HEALTHY | (VALIDATED if step == 1 or step % 5 == 0 else {})
        for name, value in (changed or {}).items():
            if name in row:
                row[name] = value(step) if callable(value) else value
        rows.append({"step": float(step), **row})
    return rows


def to(first: float, last: float) -> Shape:
    """`first` for six steps, then `last`."""
    return lambda step: first if step <= 6 else last


NO_GRADIENT = {"loss": 0.0, "grad_norm": 0.0}
SOLVING = {"accuracy": to(0.5, 0.96), "held_out/accuracy": to(0.5, 0.95)}


def last(rows: list[Row], settings: Sentinel = SETTINGS) -> tuple[HealthFinding, ...]:
    """What the rules say at the last row."""
    watch = HealthMonitor(settings)
    return [(), *map(watch.add, rows)][-1]


def found(rows: list[Row], settings: Sentinel = SETTINGS) -> dict[str, str]:
    return {finding.rule: finding.verdict for finding in last(rows, settings)}


def test_a_healthy_training_passes() -> None:
    assert last(history()) == ()
    assert review(history(), SETTINGS).verdict == "PASS"


@pytest.mark.parametrize(
    ("rule", "verdict", "broken", "clean"),
    [
        ("not_finite", "STOP", {"loss": math.nan}, {"loss": 1e6}),
        ("not_finite", "STOP", {"grad_norm": math.inf}, {"grad_norm": 9.0}),
        ("not_finite", "STOP", {"reward": math.nan}, {"reward": 0.0}),
        ("unscored", "STOP", {"abstained": 1.0}, {"abstained": 0.1}),
        ("unscored", "HOLD", {"abstained": 0.3}, {"abstained": 0.19}),
        ("no_gradient", "STOP", {"loss": 0.0, "grad_norm": 0.0}, {"loss": 0.0, "grad_norm": 1e-6}),
        ("no_gradient", "STOP", {"loss": to(1, 0), "grad_norm": to(1, 0)}, {"loss": to(1, 0)}),
        ("accuracy_collapse", "STOP", {"held_out/accuracy": to(0.5, 0.2)}, {"held_out/accuracy": to(0.5, 0.3)}),
        ("accuracy_collapse", "STOP", {"accuracy": to(0.5, 0.2)}, {"accuracy": to(0.5, 0.3)}),
        ("accuracy_collapse", "STOP", {"accuracy": to(0.12, 0.0)}, {"accuracy": to(0.09, 0.0)}),  # the fall is noise
        ("reward_diverges", "HOLD", {"reward": to(0.5, 0.7), "held_out/accuracy": to(0.5, 0.42)},
         {"reward": to(0.5, 0.55), "held_out/accuracy": to(0.5, 0.42)}),
        ("reward_diverges", "STOP", {"reward": to(0.5, 0.7), "held_out/accuracy": to(0.5, 0.38)},
         {"reward": to(0.5, 0.7), "held_out/accuracy": to(0.5, 0.6)}),
        ("kl", "HOLD", {"held_out/kl": to(0, 0.2)}, {"held_out/kl": to(0, 0.09)}),
        ("kl", "STOP", {"held_out/kl": to(0, 0.6)}, {"held_out/kl": to(0, 0.02)}),
        ("kl", "STOP", {"kl": to(0, 0.6)}, {"kl": to(0, 0.09)}),
        ("kl", "STOP", {"kl": to(0, 0.2), "accuracy": to(0.5, 0.38)}, {"accuracy": to(0.5, 0.38)}),
        ("entropy", "HOLD", {"entropy": to(0.5, 0.1)}, {"entropy": to(0.5, 0.2)}),
        ("entropy", "HOLD", {"entropy": to(0.5, 2.0)}, {"entropy": to(0.5, 1.4)}),
        ("length", "HOLD", {"completions/mean_length": to(100, 140)}, {"completions/mean_length": to(100, 125)}),
        ("length", "HOLD", {"held_out/length": to(100, 60)}, {"held_out/length": to(100, 75)}),
        ("template", "HOLD", {"text/prefix_share": to(0.1, 0.4)}, {"text/prefix_share": 0.4}),
        ("template", "HOLD", {"held_out/distinct_2": to(0.6, 0.2)}, {"held_out/distinct_2": to(0.6, 0.4)}),
        ("template", "STOP", {"text/distinct_2": to(0.6, 0.2), "accuracy": to(0.5, 0.3)},
         {"text/distinct_2": to(0.6, 0.4), "accuracy": to(0.5, 0.3)}),
        ("unanswered", "HOLD", {"text/answered": to(0.95, 0.6)}, {"text/answered": 0.6}),
        ("unanswered", "HOLD", {"text/refusals": to(0, 0.3)}, {"text/refusals": to(0, 0.1)}),
        ("truncated", "HOLD", {"completions/clipped_ratio": 0.3}, {"completions/clipped_ratio": 0.15}),
        ("truncated", "HOLD", {"held_out/truncated": 0.3}, {"held_out/truncated": 0.15}),
        ("zero_variance", "HOLD", {"frac_reward_zero_std": 0.9}, {"frac_reward_zero_std": 0.75}),
        ("grad_norm", "HOLD", {"grad_norm": to(1, 12)}, {"grad_norm": lambda step: 30.0 if step % 3 else 1.0}),
        ("sampling_gap", "HOLD", {"sampling/sampling_logp_difference/mean": 0.2},
         {"sampling/sampling_logp_difference/mean": 0.05}),
        ("sampling_gap", "STOP", {"sampling/sampling_logp_difference/mean": 0.2, "accuracy": to(0.5, 0.3)},
         {"sampling/sampling_logp_difference/mean": 0.05, "accuracy": to(0.5, 0.3)}),
        ("one_component", "HOLD", {"component/format": 0.8, "component/correct": 0.2}, {"component/format": 0.6}),
        ("solved", "PASS", {**SOLVING, "frac_reward_zero_std": to(0.4, 0.9)}, {**SOLVING, "frac_reward_zero_std": 0.7}),
    ],
)  # fmt: skip
def test_a_rule_speaks_and_stays_silent_next_door(
    rule: str, verdict: str, broken: dict[str, Any], clean: dict[str, Any]
) -> None:
    assert found(history(broken))[rule] == verdict
    assert rule not in found(history(clean))


@pytest.mark.parametrize(
    "changed",
    [
        {"abstained": 0.2},
        {"completions/clipped_ratio": 0.2},
        {"frac_reward_zero_std": 0.8},
        {"component/format": 0.7},
        {"grad_norm": 10.0},
        {"kl": to(0.0, 0.1)},
        {"held_out/kl": to(0.0, 0.1)},
        {"accuracy": to(0.5, 0.25)},  # half of the first
    ],
    ids=lambda changed: "-".join(changed),
)
def test_a_limit_that_is_met_and_not_passed_is_silent(changed: dict[str, Any]) -> None:
    assert found(history(changed)) == {}


@pytest.mark.parametrize("absent", ["loss", "grad_norm"])
def test_no_gradient_is_silent_where_its_metric_is_absent(absent: str) -> None:
    rows = [{name: value for name, value in row.items() if name != absent} for row in history(NO_GRADIENT)]
    assert found(rows) == {}
    assert found(history(NO_GRADIENT)) == {"no_gradient": "STOP"}
    blind = [{name: value for name, value in row.items() if "accuracy" not in name} for row in history(NO_GRADIENT)]
    assert found(blind) == {"no_gradient": "STOP"}, "it is not known to be right"


def test_no_gradient_is_silent_from_where_a_task_is_solved() -> None:
    assert found(history({**NO_GRADIENT, "accuracy": SOLVED, "held_out/accuracy": SOLVED})) == {}
    assert found(history({**NO_GRADIENT, "accuracy": 0.89, "held_out/accuracy": 0.89})) == {"no_gradient": "STOP"}


def test_an_answer_far_from_the_base_stops_at_the_limit() -> None:
    watch = HealthMonitor(SETTINGS, answer_kl_stop=5.0)
    rows = [{**row, "held_out/answer_kl": 4.9} if "held_out/kl" in row else row for row in history()]
    assert [finding for row in rows for finding in watch.add(row)] == []
    (finding,) = watch.add({**rows[-1], "step": 25.0, "held_out/answer_kl": 5.1})
    assert (finding.rule, finding.verdict) == ("answer_kl", "STOP")
    assert finding.reason == "held-out answers are 5.1 nats from the base model, and kl_stop is 5"
    assert found([*rows, {**rows[-1], "held_out/answer_kl": 500.0}]) == {}, "no limit was set"


def test_one_bad_batch_stops_nothing() -> None:
    bad = {"accuracy": 0.0, "entropy": 3.0, "grad_norm": 50.0, "completions/mean_length": 300.0, "text/answered": 0.0}
    for name, value in bad.items():
        rows = history({name: lambda step, name=name, value=value: value if step == 9 else HEALTHY[name]})
        assert review(rows, SETTINGS).verdict != "STOP", name


SURE = {"frac_reward_zero_std": to(0.4, 0.9), "entropy": to(0.5, 0.05), "component/format": to(0.05, 0.9)}
"""What a policy shows that has solved its task, and one that has collapsed."""


def test_a_solved_task_is_noted_and_never_held() -> None:
    health = review(history({**SOLVING, **SURE}), SETTINGS)
    assert health.verdict == "PASS"
    assert [(f.verdict, f.rule, f.step) for f in health.findings] == [("PASS", "solved", 15)]  # the second validation
    assert health.solved and "rose from 0.5 to 0.95, and 90% of the groups" in health.solved.reason


@pytest.mark.parametrize(
    "score",
    [
        to(0.5, 0.5),  # sure of what is wrong: zero variance at the bottom
        to(0.5, 0.7),  # risen, but not so far that nine groups in ten could be all right
        lambda step: 0.95 if step == 10 else 0.5,  # one lucky validation
    ],
)
def test_the_same_signs_without_the_score_hold(score: Shape) -> None:
    health = review(history({**SURE, "held_out/accuracy": score, "accuracy": to(0.5, 0.96)}), SETTINGS)
    assert health.verdict == "HOLD" and health.solved is None
    assert {"zero_variance", "entropy", "one_component"} <= {f.rule for f in health.findings}


def test_without_held_out_prompts_nothing_is_explained() -> None:
    rows = [{k: v for k, v in row.items() if "held_out" not in k} for row in history({**SURE, **SOLVING})]
    assert {f.rule: f.verdict for f in review(rows, SETTINGS).findings} == dict.fromkeys(
        ("zero_variance", "entropy", "one_component"), "HOLD"
    )


@pytest.mark.parametrize("last", [0.01, 0.2])
def test_entropy_of_a_policy_that_is_right_is_noise(last: float) -> None:
    """Later iterations of a chain: the champion is right already, and one batch with errors decides the first mean."""
    right = {"frac_reward_zero_std": 0.8, "accuracy": 0.93, "held_out/accuracy": 0.85, "entropy": to(0.04, last)}
    assert review(history(right), SETTINGS).verdict == "PASS"
    assert review(history({**right, "frac_reward_zero_std": 0.45}), SETTINGS).verdict == "HOLD"
    assert review(history({**right, "accuracy": 0.65, "held_out/accuracy": 0.65}), SETTINGS).verdict == "HOLD"


def test_entropy_may_fall_as_far_as_the_errors_do() -> None:
    learning = {"held_out/accuracy": to(0.4, 0.82), "accuracy": to(0.4, 0.82)}  # three errors in ten are left
    assert review(history({**learning, "entropy": to(0.5, 0.06)}), SETTINGS).verdict == "PASS"
    assert found(history({**learning, "entropy": to(0.5, 0.04)}))["entropy"] == "HOLD"


def test_a_sign_of_success_waits_for_the_next_validation() -> None:
    rising = {"held_out/accuracy": lambda step: 0.5 if step < 20 else 0.95, "accuracy": to(0.5, 0.96)}
    rows = history({**rising, "frac_reward_zero_std": lambda step: 0.4 if step <= 15 else 1.0})
    assert last(rows[:19]) == ()
    assert review(rows, SETTINGS).verdict == "PASS"


def test_not_a_number_stops_at_once_even_in_the_warm_up() -> None:
    rows = history({"loss": math.nan, "held_out/kl": 3.0}, steps=1)
    assert found(rows, Sentinel(warm_up=10)) == {"not_finite": "STOP"}


def test_the_first_finding_of_each_rule_and_verdict_is_kept() -> None:
    health = review(history({"held_out/kl": lambda step: 0.03 * step}), SETTINGS)
    assert [(f.rule, f.verdict, f.step) for f in health.findings] == [("kl", "HOLD", 5), ("kl", "STOP", 20)]
    assert health.verdict == "STOP"


NAMES = sorted(HEALTHY | VALIDATED)
VALUES = st.one_of(st.floats(0, 1), st.floats(-100, 100), st.just(0.0), st.floats())
ROWS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8), max_size=24)


@pytest.mark.slow
@settings(max_examples=60)
@given(ROWS)
def test_findings_stay_and_agree_with_check_at_each_step(rows: list[Row]) -> None:
    """Any metrics may be missing, any value may be out of range or no number: nothing raises."""
    kept: list[HealthFinding] = []
    for end in range(len(rows) + 1):
        said = last(rows[:end])
        kept += [f for f in said if (f.rule, f.verdict) not in {(k.rule, k.verdict) for k in kept}]
        health = review(rows[:end], SETTINGS)
        assert list(health.findings) == kept
        assert health.verdict == max((f.verdict for f in kept), key=["PASS", "HOLD", "STOP"].index, default="PASS")


def second(*scores: float | None, error: float = 0.03) -> list[Row]:
    """Validations of a training that nothing can check, by the second scorer's word; None: it was silent."""
    health = {name: value for name, value in HEALTHY.items() if name != "accuracy"}
    spoken = ({"held_out/second_score": score, "held_out/second_error": error} for score in scores if score is not None)
    return [
        {"step": float(at), **health, "held_out/length": 100.0, "held_out/second_abstained": float(score is None)}
        | (next(spoken) if score is not None else {})
        for at, score in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("rule", "verdict", "broken", "clean"),
    [
        ("second_score", "STOP", (0.5, 0.7, 0.55, 0.5), (0.5, 0.7, 0.65, 0.64)),
        ("second_score", "STOP", (0.5, 0.3, 0.3), (0.5, 0.3, 0.5)),
        ("unwatched", "STOP", (0.5, None, None), (None, 0.5, 0.5)),
        ("unwatched", "HOLD", (0.5, 0.5, None), (0.5, None, 0.5)),
    ],
)
def test_the_second_scorer_ends_a_training(
    rule: str, verdict: str, broken: tuple[float | None, ...], clean: tuple[float | None, ...]
) -> None:
    assert found(second(*broken)) == {rule: verdict}
    assert found(second(*clean)) == {}


def test_a_second_score_that_fell_once_is_waited_for() -> None:
    assert found(second(0.5, 0.7, 0.4)) == {}
    assert review(second(0.5, 0.7, 0.4, 0.7, 0.4, 0.7), SETTINGS).verdict == "PASS"
    assert found(second(0.5, 0.7, 0.4, 0.4, error=0.2)) == {}, "with so few prompts that is noise"


def test_scorers_are_what_an_unchecked_reward_is_made_of() -> None:
    rows = [row | {"component/judge": 0.9, "component/correct": 0.0} for row in second(*[0.5] * 12)]
    assert found(rows) == {}
    assert found([row | {"component/repetition": 0.9} for row in rows]) == {"one_component": "HOLD"}


def test_a_step_without_rewards_names_the_reason() -> None:
    row = {"step": 1.0, "abstained": 1.0, "abstained/judge_unreachable": 0.75, "abstained/judge_timeout": 0.25}
    (finding,) = last([row])
    assert finding.reason == "no completion of the step has a reward: judge_unreachable"


def test_every_rule_is_tried() -> None:
    mark = next(m for m in test_a_rule_speaks_and_stays_silent_next_door.pytestmark if m.name == "parametrize")
    apart = {"answer_kl", "second_score", "unwatched"}  # below
    assert {case[0] for case in mark.args[1]} == set(RULES) - apart


def test_a_limit_is_passed_throughout_a_whole_window() -> None:
    assert found(history({"grad_norm": 30.0}, steps=WINDOW - 1)) == {}
    assert found(history({"grad_norm": 30.0}, steps=WINDOW)) == {"grad_norm": "HOLD"}


def test_other_rules_wait_for_the_warm_up() -> None:
    rows = history({"held_out/kl": 3.0})
    assert "kl" not in found(rows[:10], Sentinel(warm_up=10))
    assert found(rows[:11], Sentinel(warm_up=10))["kl"] == "STOP"


def test_an_odd_first_batch_is_not_what_the_rest_is_held_to() -> None:
    assert found(history({"entropy": lambda step: 3.0 if step == 1 else 0.5})) == {}


def test_groups_all_wrong_are_not_explained_by_held_out() -> None:
    rows = history({**SURE, "held_out/accuracy": to(0.5, 0.95), "accuracy": to(0.5, 0.45)})
    assert "zero_variance" in {f.rule for f in review(rows, SETTINGS).findings}
    assert review(rows, SETTINGS).solved is None


def test_base_model_near_the_ceiling_is_not_held_nor_solved() -> None:
    near = {"held_out/accuracy": to(0.96, 0.98), "accuracy": 0.97, "frac_reward_zero_std": 0.88}
    for last in (0.02, 0.0, 0.4):  # so near to nothing, a token more or less is a multiple
        assert review(history({**near, "entropy": to(0.1, last)}), SETTINGS).findings == ()
