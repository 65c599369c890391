"""Each rule on a history that breaks it and on its neighbour that doesn't, and what holds for any history."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.recipe import Sentinel
from pipeline.training.history import WINDOW
from pipeline.training.result import HealthFinding
from pipeline.training.sentinel import RULES, SOLVED, HealthMonitor, review

Row = dict[str, float]
Shape = Callable[[int], float]
STEPS = 20
SETTINGS = Sentinel()

HEALTHY: Row = {
    "loss": -0.05, "grad_norm": 0.4, "reward": 0.5, "reward_std": 0.4, "frac_reward_zero_std": 0.4, "entropy": 0.5,
    "kl": 0.02, "completions/mean_length": 100.0, "completions/clipped_ratio": 0.02, "accuracy": 0.5, "abstained": 0.0,
    "component/correct": 0.95, "component/format": 0.05, "text/prefix_share": 0.1, "text/distinct_2": 0.6,
    "seconds/generate": 20.0,
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


def odd(values: Mapping[int, float], usual: float = 0.0) -> Shape:
    return lambda step: values.get(step, usual)


NO_GRADIENT = {"loss": 0.0, "grad_norm": 0.0}
WORSE = {"held_out/accuracy": to(0.5, 0.38)}
NOW_AND_THEN: Shape = lambda step: float(step % 3 == 0)  # noqa: E731
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
        ("no_gradient", "STOP", NO_GRADIENT, {"loss": 0.0, "grad_norm": NOW_AND_THEN}),
        ("no_gradient", "STOP", {"loss": to(1, 0), "grad_norm": to(1, 0)}, {"loss": NOW_AND_THEN, "grad_norm": 0.0}),
        ("accuracy_collapse", "STOP", {"held_out/accuracy": to(0.5, 0.2)}, {"held_out/accuracy": to(0.5, 0.3)}),
        ("accuracy_collapse", "STOP", {"accuracy": to(0.5, 0.2)}, {"accuracy": to(0.5, 0.3)}),
        ("accuracy_collapse", "STOP", {"accuracy": to(0.12, 0.0)}, {"accuracy": to(0.125, 0.025)}),  # the fall is noise
        ("reward_diverges", "HOLD", {"reward": to(0.5, 0.7), "held_out/accuracy": to(0.5, 0.42)},
         {"reward": to(0.5, 0.55), "held_out/accuracy": to(0.5, 0.42)}),
        ("reward_diverges", "STOP", {"reward": to(0.5, 0.7), "held_out/accuracy": to(0.5, 0.38)},
         {"reward": to(0.5, 0.7), "held_out/accuracy": to(0.9, 0.83)}),
        ("kl", "HOLD", {"held_out/kl": to(0, 0.5)}, {"held_out/kl": to(0, 0.09)}),
        ("kl", "STOP", {"held_out/kl": odd({STEPS: 0.6})}, {"held_out/kl": to(0, 0.02)}),
        ("kl", "STOP", {"kl": to(0, 0.6)}, {"kl": odd({STEPS: 0.3})}),
        ("kl", "STOP", {"kl": to(0, 0.2), "accuracy": to(0.5, 0.38)}, {"accuracy": to(0.5, 0.38)}),
        ("entropy", "HOLD", {"entropy": to(0.5, 0.1)}, {"entropy": to(0.5, 0.2)}),
        ("entropy", "STOP", {"entropy": to(0.5, 0.1), "accuracy": to(0.5, 0.3)}, {"accuracy": to(0.5, 0.3)}),
        ("entropy", "HOLD", {"entropy": to(0.5, 2.0)}, {"entropy": to(0.5, 1.4)}),
        ("entropy", "HOLD", {"entropy": to(0.5, 2.0)}, {**SOLVING, "entropy": to(0.5, 2.0)}),  # no errors are left
        ("loss_spike", "HOLD", {"loss": odd({STEPS: 0.6}, -0.05)}, {"loss": odd({STEPS: 0.5}, -0.05)}),
        ("loss_spike", "HOLD", {"loss": odd({STEPS: 7.2}, 0.7)}, {"loss": odd({3: 0.7, STEPS: 6.9})}),
        ("loss_spike", "HOLD", {"loss": odd({14: 0.7, STEPS: 6.9})}, {"loss": odd({15: 0.7, STEPS: 6.9})}),
        ("loss_spike", "HOLD", {"loss": odd({STEPS: -0.6})}, {"loss": odd({19: -0.7, STEPS: 6.9})}),
        ("reward_flat", "HOLD", {"reward": to(0.5, 0.39)}, {"reward": to(0.5, 0.41)}),
        ("reward_flat", "HOLD",
         {"reward": lambda step: (0.5 if step < 6 else step % 2 if step < 16 else 0.3) + 0.05 * (-1) ** step},
         {"reward": lambda step: (0.3 if step > 6 else 0.5) + (0.4 if step % 3 else -0.2)}),  # noise
        ("generation", "PASS", {"seconds/generate": to(20, 31)}, {"seconds/generate": to(20, 29)}),
        ("generation", "PASS", {"seconds/generate": to(20, 31)},
         {"seconds/generate": to(20, 31), "completions/mean_length": to(100, 120)}),
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
        ("solved", "PASS", {**SOLVING, "frac_reward_zero_std": to(0.4, 0.9)},
         {"accuracy": to(0.5, 0.85), "held_out/accuracy": to(0.5, 0.85), "frac_reward_zero_std": to(0.4, 0.9)}),
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
        {"abstained": 0.2, "completions/clipped_ratio": 0.2, "frac_reward_zero_std": 0.8},
        {"component/format": 0.7, "grad_norm": 10.0, "kl": to(0.0, 0.1)},
        {"seconds/generate": to(20, 30), "held_out/kl": to(0.0, 0.1)},
        {"accuracy": to(0.5, 0.25)},  # half of the first
        {"completions/mean_length": to(100, 130), "text/prefix_share": to(0, 0.2), "text/distinct_2": to(0.5, 0.25),
         "text/answered": to(0.2, 0), "text/refusals": to(0, 0.2)},
        {"component/format": 0.9, "entropy": to(0.5, 2.0), "held_out/accuracy": SOLVED},
        {"held_out/accuracy": to(1, 0.85)},
        {"entropy": to(0.5, 0.15), "accuracy": to(0.5, 0.38)},
        {"reward": to(0.5, 0.75), "reward_std": 1.0, "held_out/accuracy": to(0.5, 0.38)},
        {"reward": to(0.5, 0.7), "held_out/accuracy": to(0.2, 0.16)},
        {"entropy": to(0.5, 1.5), "reward": to(0.625, 0.5)},
        {"entropy": to(0.5, 0.075), "held_out/accuracy": to(0.5, 0.75)},  # half of the errors are left
    ],
    ids=lambda changed: "-".join(changed),
)  # fmt: skip
def test_a_limit_that_is_met_and_not_passed_is_silent(changed: dict[str, Any]) -> None:
    assert found(history(changed)) == {}


def test_an_answer_far_from_the_base_stops_at_the_limit() -> None:
    watch = HealthMonitor(SETTINGS, answer_kl_stop=5.0)
    rows = [{**row, "held_out/answer_kl": 5.0} if "held_out/kl" in row else row for row in history()]
    assert [finding for row in rows for finding in watch.add(row)] == []
    (finding,) = watch.add({**rows[-1], "step": 25.0, "held_out/answer_kl": 5.1})
    assert (finding.rule, finding.verdict) == ("answer_kl", "STOP")
    assert finding.reason == "held-out answers are 5.1 nats from the base model, and kl_stop is 5"
    assert found([*rows, {**rows[-1], "held_out/answer_kl": 500.0}]) == {}, "no limit was set"


SURE = {"frac_reward_zero_std": to(0.4, 0.9), "entropy": to(0.5, 0.05), "component/format": to(0.05, 0.9)}
"""What a policy shows that has solved its task, and one that has collapsed."""
SIGNS = {"zero_variance", "entropy", "one_component"}
RIGHT = {"frac_reward_zero_std": 0.8, "accuracy": 0.93, "held_out/accuracy": 0.85}
"""Later iterations of a chain: the champion is right already, and one batch with errors decides the first mean."""
LEARNING = {"held_out/accuracy": to(0.4, 0.82), "accuracy": to(0.4, 0.82)}  # three errors in ten are left
CEILING = {"held_out/accuracy": to(0.96, 0.98), "accuracy": 0.97, "frac_reward_zero_std": 0.88}
WAITS = {
    "held_out/accuracy": lambda step: 0.5 if step < 20 else 0.95, "accuracy": to(0.5, 0.96),
    "frac_reward_zero_std": lambda step: 0.4 if step <= 15 else 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "verdict", "rules"),
    [
        ({**SOLVING, **SURE}, "PASS", {"solved"}),
        ({**SURE, "held_out/accuracy": 0.5, "accuracy": to(0.5, 0.96)}, "HOLD", SIGNS),  # sure of what is wrong
        ({**SURE, "held_out/accuracy": to(0.5, 0.7), "accuracy": to(0.5, 0.96)}, "HOLD", SIGNS),
        ({**SURE, "held_out/accuracy": lambda step: 0.95 if step == 10 else 0.5, "accuracy": to(0.5, 0.96)},
         "HOLD", SIGNS),  # one lucky validation
        ({**SURE, "held_out/accuracy": to(0.5, 0.95), "accuracy": to(0.5, 0.45)}, "HOLD", {"zero_variance"}),
        ({**RIGHT, "entropy": to(0.04, 0.01)}, "PASS", set()),
        ({**RIGHT, "entropy": to(0.04, 0.2)}, "PASS", set()),
        ({**RIGHT, "entropy": to(0.04, 0.01), "frac_reward_zero_std": 0.5}, "HOLD", {"entropy"}),
        ({**RIGHT, "entropy": to(0.04, 0.2), "accuracy": 0.65, "held_out/accuracy": 0.65}, "HOLD", {"entropy"}),
        ({**LEARNING, "entropy": to(0.5, 0.06)}, "PASS", set()),
        ({**LEARNING, "entropy": to(0.5, 0.04)}, "HOLD", {"entropy"}),
        (WAITS, "PASS", set()),
        *(({**CEILING, "entropy": to(0.1, last)}, "PASS", set()) for last in (0.02, 0.0, 0.4)),
        ({"entropy": lambda step: 3.0 if step == 1 else 0.5}, "PASS", set()),  # an odd first batch
        ({"held_out/kl": lambda step: 0.03 * step}, "STOP", {"kl"}),
    ],
)  # fmt: skip
def test_a_training_is_judged_by_all_of_its_rows(changed: dict[str, Any], verdict: str, rules: set[str]) -> None:
    health = review(history(changed), SETTINGS)
    assert health.verdict == verdict and rules <= {finding.rule for finding in health.findings}
    assert (health.solved is not None) == ("solved" in rules)
    assert verdict == "HOLD" or {finding.rule for finding in health.findings} == rules


def test_the_first_finding_of_each_verdict_is_kept_and_dated() -> None:
    solved = review(history({**SOLVING, **SURE}), SETTINGS).solved
    assert solved is not None and solved.step == 15  # the second validation
    assert "rose from 0.5 to 0.95, and 90% of the groups" in solved.reason
    said: list[str] = []
    watch = HealthMonitor(SETTINGS, say=said.append)
    for row in history({"held_out/kl": lambda step: 0.03 * step}):
        watch.add(row)
    assert [(f.rule, f.verdict, f.step) for f in watch.health.findings] == [("kl", "HOLD", 5), ("kl", "STOP", 20)]
    assert [line.split(":")[0] for line in said] == ["HOLD at step 5", "STOP at step 20"]


def without(word: str, changed: Mapping[str, float | Shape]) -> list[Row]:
    return [{name: value for name, value in row.items() if word not in name} for row in history(changed)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (history(NO_GRADIENT), {"no_gradient": "STOP"}),
        (without("loss", NO_GRADIENT), {}),
        (without("grad_norm", NO_GRADIENT), {}),
        (without("accuracy", NO_GRADIENT), {"no_gradient": "STOP"}),  # it is not known to be right
        (history({**NO_GRADIENT, "accuracy": SOLVED, "held_out/accuracy": SOLVED}), {}),
        (history({**NO_GRADIENT, "accuracy": 0.89, "held_out/accuracy": 0.89}), {"no_gradient": "STOP"}),
        (history({**NO_GRADIENT, "accuracy": to(0.5, 0.6), "held_out/accuracy": to(0.5, 0.6)}), {}),
        (without("reward_std", {"reward": to(0.5, 0.52), **WORSE}), {"reward_diverges": "STOP"}),
        (without("frac_reward", {**SOLVING, "entropy": to(0.5, 2.0)}), {}),
        (history({**SOLVING, "frac_reward_zero_std": to(0.4, 0.9)})[:19], {}),
        (history({"held_out/accuracy": math.nan}), {}),
        (without("seconds", {}), {}),
        (without("mean_length", {"seconds/generate": to(20, 31)}), {}),
        (history({"completions/mean_length": to(100, 0)}), {"length": "HOLD"}),
        (history({"entropy": to(0.5, 0.1), "accuracy": to(0.5, 0.3)})[:19], {"entropy": "STOP"}),
        (without("held_out", {**SURE, **SOLVING}), dict.fromkeys(SIGNS, "HOLD")),  # nothing is explained
        (history(WAITS)[:19], {}),  # a sign of success waits for the next validation
        (history({"grad_norm": 30.0}, steps=WINDOW - 1), {}),
        (history({"grad_norm": 30.0}, steps=WINDOW), {"grad_norm": "HOLD"}),
    ],
)
def test_what_the_last_row_says(rows: list[Row], expected: dict[str, str]) -> None:
    assert found(rows) == expected


def test_only_what_is_not_finite_stops_in_the_warm_up() -> None:
    rows = history({"loss": math.nan, "held_out/kl": 3.0}, steps=1)
    assert found(rows, Sentinel(warm_up=10)) == {"not_finite": "STOP"}
    rows = history({"held_out/kl": 3.0})
    assert "kl" not in found(rows[:10], Sentinel(warm_up=10))
    assert found(rows[:11], Sentinel(warm_up=10))["kl"] == "STOP"


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
        ("unwatched", "HOLD", (0.9, 0.5, 0.5, None), (0.5, None, 0.5)),
    ],
)
def test_the_second_scorer_ends_a_training(
    rule: str, verdict: str, broken: tuple[float | None, ...], clean: tuple[float | None, ...]
) -> None:
    assert found(second(*broken)) == {rule: verdict}
    assert found(second(*clean)) == {}


def test_a_second_score_that_fell_once_is_waited_for() -> None:
    assert found(second(0.5, 0.7, 0.4)) == found(second(0.5, 0.5, 0.5, error=0.0)) == {}
    assert review(second(0.5, 0.7, 0.4, 0.7, 0.4, 0.7), SETTINGS).verdict == "PASS"
    assert found(second(0.5, 0.7, 0.4, 0.4, error=0.2)) == {}, "with so few prompts that is noise"
    half = [row | {"held_out/second_abstained": 0.5} for row in second(0.5, None, None)]
    assert found(half) == found(second(0.5, None)[1:]) == {"unwatched": "HOLD"}


def test_scorers_are_what_an_unchecked_reward_is_made_of() -> None:
    rows = [row | {"component/judge": 0.9, "component/correct": 0.0} for row in second(*[0.5] * 12)]
    assert found(rows) == {}
    assert found([row | {"component/judge": 0.9} for row in history()]) == {"one_component": "HOLD"}
    assert found([row | {"component/repetition": 0.9} for row in rows]) == {"one_component": "HOLD"}


def test_a_step_without_rewards_names_the_reason() -> None:
    row = {"step": 1.0, "abstained": 1.0, "abstained/judge_unreachable": 0.75, "abstained/judge_timeout": 0.25}
    (finding,) = last([row])
    assert finding.reason == "no completion of the step has a reward: judge_unreachable"


def test_a_reward_that_does_not_rise_is_said_in_time() -> None:
    flat = history(steps=50)
    unchecked = [{name: value for name, value in row.items() if name != "accuracy"} for row in flat]
    assert found(flat[:49]) == {} and found(flat) == found(unchecked) == {"reward_flat": "PASS"}
    (finding,) = last(flat)
    assert finding.reason == "no rise in 50 steps: reward went from 0.5 to 0.5"
    assert found(history({"reward": to(0.5, 0.51)}, steps=50)) == {}
    for metric in ("reward", "accuracy"):
        assert found(history({metric: SOLVED}, steps=50)) == {}, "there is little to rise to"


def test_every_rule_is_tried() -> None:
    mark = next(m for m in test_a_rule_speaks_and_stays_silent_next_door.pytestmark if m.name == "parametrize")
    apart = {"answer_kl", "second_score", "unwatched"}  # below
    assert {case[0] for case in mark.args[1]} == set(RULES) - apart
