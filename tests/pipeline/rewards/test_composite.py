from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pytest import approx, mark, raises

from pipeline.recipe.custom import CustomReward
from pipeline.recipe.rewards import Rewards, Weights
from pipeline.rewards.composite import compose, profile_of, verified, weights_of
from pipeline.rewards.records import ABSENT, COMPONENTS, DOES_NOT_APPLY, Finding
from pipeline.rewards.verifiers import Grade, Outcome, VerifierTask

SETTINGS = Rewards()
LONG = "First multiply the seven bags by two books each, then add the sixteen loose books.\n#### 30"
SHARES = st.floats(0, 1)
FINDINGS = st.dictionaries(
    st.sampled_from(COMPONENTS),
    st.builds(Finding, SHARES)
    | st.sampled_from([DOES_NOT_APPLY, Finding(None, "timeout"), Finding(None, "judge_http")]),
)


def said(**values: float | str) -> dict[str, Finding]:
    return {name: Finding(None, v) if isinstance(v, str) else Finding(v) for name, v in values.items()}


@mark.parametrize(
    ("reference", "rated", "fresh", "profile"),
    [
        ("4", False, False, "verified"),
        ("4", True, False, "verified"),
        ("4", False, True, "verified"),
        (None, True, False, "rated"),
        (None, True, True, "fresh"),
        ("", False, False, "judged"),
    ],
)
def test_which_weights_a_completion_is_scored_by(reference: str | None, rated: bool, fresh: bool, profile: str) -> None:
    assert profile_of(reference, rated, fresh) == profile


def test_the_seeds_weights_are_the_defaults() -> None:
    """Seed 001's shaped reward, and what of seed 000's mix of judge and feedback the pipeline measures itself."""
    shaped = compose(said(correct=1.0, format=1.0, length=0.0), "verified", SETTINGS)
    assert shaped.final_reward == approx((1.0 + 0.1) / 1.15)
    assert compose(said(judge=0.25), "judged", SETTINGS).final_reward == 0.25
    mixed = said(judge=0.5, feedback=0.75, latency=1.0)
    assert compose(mixed, "rated", SETTINGS).final_reward == approx((0.3 * 0.5 + 0.2 * 0.75 + 0.05) / 0.55)


def test_an_imports_reward_is_taken_as_it_stands() -> None:
    assert profile_of("4", rated=True, fresh=False, imported="imported") == "imported"
    reward = compose(said(given=0.25, judge=1.0), "imported", SETTINGS)
    assert (reward.final_reward, reward.reason, reward.weights) == (0.25, "", {"given": 1.0})


def test_composite_leaves_out_what_does_not_apply() -> None:
    reward = compose({**said(judge=0.5), "feedback": DOES_NOT_APPLY}, "rated", SETTINGS)
    assert (reward.final_reward, reward.weights) == (0.5, {"judge": 1.0})
    light = compose({**said(feedback=1.0), "judge": DOES_NOT_APPLY, "latency": DOES_NOT_APPLY}, "rated", SETTINGS)
    assert (light.final_reward, light.reason) == (1.0, ""), "no weight of what does not apply is missed"
    weightless = compose(said(judge="judge_http"), "rated", Rewards(rated=Weights(feedback=1.0)))
    assert (weightless.final_reward, weightless.reason) == (None, "no_signal")


def test_a_light_silence_is_renormalised_and_a_heavy_one_is_null() -> None:
    light = compose(said(judge=0.5, feedback=1.0, latency="error"), "rated", SETTINGS)
    assert light.final_reward == approx((0.3 * 0.5 + 0.2) / 0.5)
    assert light.missing == {"latency": "error"}
    heavy = compose(said(correct="timeout", format=1.0, length=1.0), "verified", SETTINGS)
    assert (heavy.final_reward, heavy.reason, heavy.weights) == (None, "timeout", {})


def test_the_reason_is_of_the_heaviest_that_was_silent() -> None:
    settings = Rewards(rated=Weights(feedback=0.4, correct=0.25, judge=0.35))
    findings = said(feedback=1.0, correct="timeout", judge="judge_http")
    reward = compose(findings, "rated", settings)
    assert (reward.final_reward, reward.reason) == (None, "judge_http"), "0.4 of the weight spoke"
    assert compose(findings, "rated", settings, min_weight=0.4).final_reward == 1.0


def test_weights_count_by_their_ratios_however_small() -> None:
    for scale in (5e-324, 1e-12, 1000.0):
        settings = Rewards(judged=Weights(judge=scale, repetition=scale))
        assert compose(said(judge=1.0, repetition=0.5), "judged", settings).final_reward == 0.75
    with raises(ValidationError, match="less than or equal to 1000"):
        Weights(judge=1e308)


@given(
    FINDINGS,
    st.sampled_from(["verified", "rated", "judged"]),
    st.builds(Weights, *[], **dict.fromkeys(COMPONENTS, SHARES | st.floats(0, 1000))),
)
def test_a_reward_is_in_range_or_null_with_a_reason(findings: dict, profile: str, weights: Weights) -> None:
    custom = CustomReward(code="mine.py:reward") if weights.custom else None
    settings = Rewards(verified=weights, rated=weights, judged=weights, custom=custom)
    reward = compose(findings, profile, settings)  # type: ignore[arg-type]
    assert (reward.final_reward is None) == bool(reward.reason) == (not reward.weights)
    if reward.final_reward is not None:
        assert 0 <= reward.final_reward <= 1
        assert sum(reward.weights.values()) == approx(1)
        values = [findings[name].value for name in reward.weights]
        assert min(values) - 1e-9 <= reward.final_reward <= max(values) + 1e-9


@mark.parametrize(
    ("outcome", "reward"),
    [(Outcome.correct, 1.0), (Outcome.wrong, 0.15 / 1.15), (Outcome.timeout, None), (Outcome.error, None)],
)
def test_a_fresh_completion_is_worth_what_a_logged_one_is(outcome: Outcome, reward: float | None) -> None:
    fresh = compose(verified(VerifierTask(LONG, "30"), Grade(outcome, "30"), SETTINGS), "verified", SETTINGS)
    assert fresh.final_reward == (None if reward is None else approx(reward))
    assert fresh.profile == "verified"
    assert fresh.reason == ("" if reward is not None else outcome.value)
    needed = [name for name in COMPONENTS if getattr(weights_of("verified", SETTINGS), name) > 0]
    assert all(fresh.findings[name].reason != ABSENT for name in needed), "all of it can be computed afresh"
