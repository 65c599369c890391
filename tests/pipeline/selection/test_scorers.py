"""Scorers of fresh samples: that a gain is what another one sees, and whose word enters it at all."""

import random

import pytest

from pipeline.core.estimate import Estimate
from pipeline.core.storage import ModelRef
from pipeline.recipe.rewards import Weights
from pipeline.rewards.reward_model.records import ProbeResult, RewardModelReport
from pipeline.selection.pairing import LabelledRow, by_prompt
from pipeline.selection.unpaired import ScorerEvidence, best_of_k, measure_scorers

from .labelled import row

BOTH = Weights(reward_model=0.5, judge=0.5)
MODEL = ModelRef(uri="m", digest="m")
AUC = Estimate(value=0.8, low=0.75, high=0.85, n=400)
PASSED = Estimate(value=0.95, low=0.92, high=0.98, n=200)
FAILED = Estimate(value=0.4, low=0.35, high=0.45, n=200)


def report(*failed: str, reasons: tuple[str, ...] = ()) -> RewardModelReport:
    probes = [ProbeResult(name=name, kind="swap", ordered_right=FAILED, passes=False) for name in failed]
    probes.append(ProbeResult(name="polite", kind="append", ordered_right=PASSED, passes=True))
    against = (*reasons, *(f"probe {name}" for name in failed))
    return RewardModelReport(
        iteration="i", model=MODEL, admitted=not against, reasons=against, auc=AUC, probes=tuple(probes)
    )


def drawn(agree: float, prompts: int = 120, k: int = 6) -> list[LabelledRow]:
    """Completions whose quality the reward model sees and the judge sees with weight `agree`."""
    rng = random.Random(0)
    rows: list[LabelledRow] = []
    for prompt in range(prompts):
        for _ in range(k):
            quality = rng.random()
            judge = agree * quality + (1 - agree) * rng.random()
            fields = {"reference": None, "profile": "fresh", "fresh": True, "correct": None}
            rows.append(row(f"t{prompt}", quality, prompt=str(prompt), reward_model=quality, judge=judge, **fields))
    return rows


def measured(
    rows: list[LabelledRow], reward_model: RewardModelReport | None, weights: Weights = BOTH
) -> ScorerEvidence:
    return measure_scorers(by_prompt(rows), weights, reward_model)


def test_scorers_that_agree_show_a_gain() -> None:
    evidence = measured(drawn(0.6), report())
    assert evidence.names == ("reward_model", "judge")
    assert evidence.gain.low is not None and evidence.gain.low > 0.1 and evidence.gain.n == 120
    assert evidence.feedback_auc == AUC


def test_scorers_that_see_other_things_show_none() -> None:
    """By its own word, each one's choice of six would gain 0.36."""
    evidence = measured(drawn(0.0), report())
    assert evidence.gain.low is not None and evidence.gain.low <= 0.01


def test_the_direction_that_shows_least_counts() -> None:
    """A judge of one mark takes all for the best: the reward model sees no gain in its choice."""
    flat = [each._replace(judge=0.75) for each in drawn(0.6)]
    assert measured(flat, report()).gain.value == pytest.approx(0)
    coarse = [each._replace(judge=float((each.reward_model or 0.0) > 0.5)) for each in drawn(0.6)]
    groups = list(by_prompt(coarse).values())
    least, most = best_of_k(groups, "judge", "reward_model"), best_of_k(groups, "reward_model", "judge")
    assert measured(coarse, report()).gain == least
    assert least.high is not None and most.low is not None and least.high < most.low


@pytest.mark.parametrize(
    ("reward_model", "weights", "names"),
    [
        (None, BOTH, ("judge",)),
        (report("wrong fact"), BOTH, ("reward_model", "judge")),
        (report("wrong fact"), Weights(reward_model=1.0), ()),
        (report(reasons=("700 thumbs are missing",)), BOTH, ("judge",)),
        (report("wrong fact", reasons=("AUC 0.55",)), BOTH, ("judge",)),
        (report(), Weights(judge=1.0), ("judge",)),
    ],
    ids=["no model", "a probe is covered", "nobody covers it", "too few thumbs", "no order", "no weight"],
)
def test_whose_word_counts(reward_model: RewardModelReport | None, weights: Weights, names: tuple[str, ...]) -> None:
    assert measured(drawn(0.6), reward_model, weights).names == names


def test_a_pair_that_scored_nothing_together_shows_nothing() -> None:
    """Two agree, and the third scored what they did not: nobody bears it out."""
    alone = [each._replace(reward_model=None, judge=None, custom=0.5) for each in drawn(0.6, prompts=1)]
    weights = Weights(reward_model=0.5, judge=0.5, custom=0.5)
    evidence = measured([*drawn(0.6)[6:], *alone], report(), weights)
    assert evidence.names == ("reward_model", "judge", "custom")
    assert evidence.gain.low is None


@pytest.mark.parametrize(("k", "prompts"), [(1, 0), (2, 120)])
def test_a_choice_is_among_two_completions(k: int, prompts: int) -> None:
    assert measured(drawn(0.6, k=k), report()).gain.n == prompts


@pytest.mark.parametrize("fields", [{"finished": False}, {"fresh": False}])
def test_what_has_not_ended_or_is_logged_shows_nothing(fields: dict[str, bool]) -> None:
    evidence = measured([each._replace(**fields) for each in drawn(0.6)], report())
    assert evidence.names == () and evidence.gain.value is None


def test_a_completion_that_one_scorer_left_out_is_no_choice() -> None:
    rows = drawn(0.6)
    silent = [each._replace(reward_model=None) if at % 6 == 0 else each for at, each in enumerate(rows)]
    rest = [each for at, each in enumerate(rows) if at % 6]
    assert measured(silent, report()).gain == measured(rest, report()).gain
