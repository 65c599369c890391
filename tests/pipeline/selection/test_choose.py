"""The rule: which method for which evidence, and what its record says."""

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.estimate import UNKNOWN, Estimate, share
from pipeline.recipe import Selection
from pipeline.recipe.methods import METHODS
from pipeline.selection.choose import MethodDecision, choose, percentages
from pipeline.selection.evidence import Evidence, NoiseSource, PromptAttempts
from pipeline.selection.unpaired import ScorerEvidence

AUTO = Selection()
GOOD = Evidence(
    traces=5000, labelled=4800, coverage=0.96, prompts=1500, groups=1400, verifiable_prompts=1300,
    verifiable_share=share(1300, 1500),
    frontier_prompts=1000, attempts=(PromptAttempts(2, 4, 1000, True), PromptAttempts(4, 4, 300, False)),
    pairs=800, label_noise=share(90, 900),
    noise_sources={"feedback": NoiseSource(share=1.0, noise=share(90, 900))},
)  # fmt: skip


def decide(settings: Selection = AUTO, min_coverage: float = 0.5, **change: object) -> MethodDecision:
    """`zero_variance_share`: of the groups that will be drawn."""
    flat = change.pop("zero_variance_share", share(560, 1400))
    with patch("pipeline.selection.choose.zero_variance", return_value=flat):
        return choose(GOOD.model_copy(update=change), settings, min_coverage)


UNVERIFIABLE = {"verifiable_share": share(300, 1500)}


@pytest.mark.parametrize(
    ("change", "method", "lacks"),
    [
        ({}, "grpo", {}),
        (UNVERIFIABLE, "dpo", {"grpo": "verifiable share of prompts: 20.0% (18.1% to 22.1%, n=1,500), needs lower"}),
        ({"frontier_prompts": 99}, "dpo", {"grpo": "prompts on the frontier: 99, needs >= 100"}),
        ({"zero_variance_share": share(1260, 1400)}, "dpo", {"grpo": "90.0% (88.3% to 91.5%, n=1,400), needs upper"}),
        ({"zero_variance_share": UNKNOWN}, "dpo", {"grpo": "unknown: n=0, needs verified attempts"}),
        ({"label_noise": share(360, 900)}, "grpo", {"dpo": "40.0% (36.8% to 43.2%, n=900), needs upper bound"}),
        ({"label_noise": UNKNOWN}, "grpo", {"dpo": "label noise of the pairs unknown: n=0, needs reviews"}),
        ({"pairs": 10}, "grpo", {"dpo": "preference pairs: 10, needs >= 200"}),
        ({**UNVERIFIABLE, "pairs": 10}, "none", {"grpo": "20.0%", "dpo": "10, needs >= 200"}),
        ({**UNVERIFIABLE, "label_noise": UNKNOWN}, "none", {"grpo": "20.0%", "dpo": "n=0, needs reviews"}),
        ({"coverage": 0.3}, "none", {"grpo": "label coverage: 30.0%, needs >= 50.0%", "dpo": "label coverage: 30.0%"}),
    ],
)  # fmt: skip
def test_the_rule(change: dict[str, object], method: str, lacks: dict[str, str]) -> None:
    decision = decide(**change)
    assert decision.method == method
    assert decision.lacks.keys() == lacks.keys()
    for name, what in lacks.items():
        assert what in "; ".join(decision.lacks[name])
    assert decision.reasons
    assert not decision.forced


def test_groups_to_be_drawn_decide_not_the_logged_ones() -> None:
    assert decide(zero_variance_share=share(1330, 1400)).method == "dpo"
    decision = choose(GOOD, AUTO, 0.5)
    assert decision.method == "grpo"
    assert "expected zero-variance share of groups of 8" in "; ".join(decision.reasons)
    assert "preference pairs" not in "; ".join(decision.reasons), "GRPO needs none"


def test_a_forced_method_says_so_and_what_it_lacks() -> None:
    decision = decide(Selection(method="dpo"), pairs=10)
    assert (decision.method, decision.forced) == ("dpo", True)
    assert "needs >= 200" in decision.lacks["dpo"][0]
    for name in ("kto", "sft"):
        assert name in decide(AUTO.model_copy(update={"method": name})).lacks


@pytest.mark.parametrize(
    ("method", "change"),
    [("grpo", {"frontier_prompts": 0}), ("grpo", {"coverage": 0.3}), ("dpo", {"coverage": 0.3, "frontier_prompts": 0}),
     ("dpo", {"pairs": 0})],
)  # fmt: skip
def test_a_forced_method_without_material_does_not_train(method: str, change: dict[str, float]) -> None:
    decision = decide(AUTO.model_copy(update={"method": method}), **change)
    assert (decision.method, decision.forced) == ("none", True)


estimates = st.integers(0, 400).flatmap(lambda n: st.integers(0, n).map(lambda k: share(k, n)))
evidences = st.fixed_dictionaries(
    {
        "coverage": st.floats(0, 1), "verifiable_share": estimates, "zero_variance_share": estimates,
        "label_noise": estimates, "frontier_prompts": st.integers(0, 300), "pairs": st.integers(0, 500),
    }
)  # fmt: skip


@given(evidences)
def test_a_decision_is_a_function_of_its_record(drawn: dict[str, object]) -> None:
    decision = decide(**drawn)
    assert decide(**drawn) == decision
    assert MethodDecision.model_validate_json(decision.model_dump_json()) == decision
    if decision.method == "none":
        assert decision.lacks.keys() == {"grpo", "dpo"}
    else:
        assert decision.method not in decision.lacks
        assert all(check.holds for check in decision.checks if decision.method in check.needed_by)


@given(evidences, st.integers(0, 40), st.integers(0, 40), st.integers(0, 2))
def test_what_could_be_forced_is_what_trains_when_it_is(
    drawn: dict[str, object], thumbs: int, scored: int, winners: int
) -> None:
    change = {**drawn, "thumbs": thumbs, "contrasted_thumbs": thumbs, "scored_prompts": scored, "winners": winners}
    forceable = decide(**change).forceable
    assert forceable == tuple(name for name in METHODS if decide(Selection(method=name), **change).method == name)


def test_forced_training_on_scores_needs_no_logged_label() -> None:
    forced = Selection(method="grpo")
    scored = {"coverage": 0.1, "frontier_prompts": 0, "scored_prompts": 50}
    assert decide(forced, **scored).method == "grpo"
    assert decide(forced, **{**scored, "scored_prompts": 0}).method == "none"
    assert decide(forced, **{**scored, "frontier_prompts": 1}).method == "none", "then the labels are trained on"
    assert decide(**scored).method == "none", "never unforced"
    assert decide(Selection(method="sft"), coverage=0.1, winners=300).method == "sft", "nor do winners"


def test_figures_are_said_as_people_read_them() -> None:
    auc = Estimate(value=0.523, low=0.5, high=0.546, n=400)
    said = decide(thumbs=400, rarer_thumb=share(200, 400), scorers=ScorerEvidence(feedback_auc=auc)).lacks["kto"]
    assert "AUC on the thumbs of unseen users: 0.52 (0.50 to 0.55, n=400), needs lower bound >= 0.52" in said[0]
    assert percentages(UNKNOWN) == "unknown (n=0)"
    assert percentages(Estimate(value=0.1, low=0.1, high=0.1, n=0)) == "10.0% (assumed, n=0)"


def test_a_bound_may_touch_its_threshold() -> None:
    touching = Estimate(value=0.7, low=0.6, high=0.8, n=1400)
    assert (
        decide(zero_variance_share=touching, verifiable_share=touching.model_copy(update={"low": 0.5})).method == "grpo"
    )


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"verifiable_share": share(6, 10)}, "grpo"),  # 60% holds, 31% may be the truth
        ({"zero_variance_share": share(7, 10)}, "grpo"),
        ({"label_noise": share(2, 10)}, "dpo"),
    ],
)
def test_a_small_sample_speaks_against_a_method(change: dict[str, Estimate], lacking: str) -> None:
    (name, small), = change.items()  # fmt: skip
    assert lacking in decide(**change).lacks
    assert small.value is not None
    assert lacking not in decide(**{name: share(100 * small.n * small.value, 100 * small.n)}).lacks


selections = st.builds(
    Selection, min_prompts=st.integers(1, 10**30), min_pairs=st.integers(1, 10**30),
    max_zero_variance_share=st.floats(0, 1) | st.sampled_from([5e-324, 1e-200, 1 - 2**-53]),
    method=st.sampled_from(["auto", "grpo", "dpo"]),
)  # fmt: skip


@given(evidences, selections, st.floats(0, 1))
def test_it_decides_whatever_the_thresholds(drawn: dict[str, object], settings: Selection, floor: float) -> None:
    decision = decide(settings, floor, **drawn)
    lacking = [each for each in decision.checks if not each.holds]
    if decision.method != "none" and not decision.forced:
        assert all(decision.method not in each.needed_by for each in lacking)


@given(evidences, st.integers(0, 400), st.integers(0, 1000))
def test_more_noise_never_leads_to_dpo_nor_more_pairs_away(drawn: dict[str, Any], more: int, pairs: int) -> None:
    noise, before = drawn["label_noise"], decide(**drawn)
    noisier = share(min(noise.n, round((noise.value or 0.0) * noise.n) + more), noise.n)
    assert before.method == "dpo" or decide(**{**drawn, "label_noise": noisier}).method != "dpo"
    assert before.method in ("none", decide(**{**drawn, "pairs": drawn["pairs"] + pairs}).method)
