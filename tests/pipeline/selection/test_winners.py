"""Winners: the best of k fresh samples, and that every gate of the preference dataset holds for them too."""

import json
from pathlib import Path

import pytest

from pipeline.core.storage import ModelRef
from pipeline.recipe import Selection
from pipeline.recipe.rewards import Rewards, Weights
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.selection.choose import choose
from pipeline.selection.pairing import LabelledRow, by_prompt
from pipeline.selection.preferences import PreferenceDataset
from pipeline.selection.unpaired import in_order_of_spread, winners

from .labelled import row
from .test_preferences import FROZEN, SETTINGS, WORDS, Place, answers, asked, read

ROWS = [row(name, None, prompt=name, reference=None) for name in WORDS]


def chat(prompt: str) -> str:
    return json.dumps([{"role": "user", "content": prompt}])


def sample(prompt: str, completion: str, score: float | None, ended: bool = True, trace: str = "") -> LabelledRow:
    drawn = {"completion": completion, "reference": None, "profile": "fresh", "correct": None, "verifier": None}
    return row(trace or prompt, score, prompt=prompt, fresh=True, finished=ended, **drawn)


def best(*samples: LabelledRow) -> list[str]:
    return [winner.completion for winner in winners(by_prompt([*ROWS, *samples]))]


def test_the_best_of_k_wins() -> None:
    assert best(sample("sun", "a", 0.1), sample("sun", "b", 0.9), sample("sun", "c", 0.5)) == ["b"]


@pytest.mark.parametrize(
    "bad",
    [
        sample("sun", "cut off", 2.0, ended=False),
        sample("sun", " ", 2.0),
        sample("sun", "no score", None),
        sample("sun", "Write to [EMAIL].", 2.0),
    ],
    ids=lambda each: each.completion.strip() or "empty",
)
def test_what_may_not_win_never_does(bad: LabelledRow) -> None:
    assert best(bad, sample("sun", "a", 0.1), sample("sun", "b", 0.2)) == ["b"]
    assert best(bad, sample("sun", "a", 0.1)) == []


@pytest.mark.parametrize("k", [1, 8])
def test_answers_that_score_alike_have_no_winner(k: int) -> None:
    assert best(*(sample("sun", f"a{n}", 0.5) for n in range(k))) == []


def test_of_equal_scores_the_shorter_wins() -> None:
    drawn = [sample("sun", text, score) for text, score in (("long", 1.0), ("b", 1.0), ("a", 1.0), ("c", 0.0))]
    assert best(*drawn) == best(*reversed(drawn)) == ["a"]


def test_gates_hold_for_winners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Selection, "max_contamination", 0.5)
    item = "what is the old lighthouse keeper of the northern island called"
    rows = [*ROWS, row("asked", None, prompt=FROZEN, reference=None)]
    rows[0] = rows[0]._replace(consent=False)
    scores = {"good": 1.0, "bad": 0.0}
    fresh = [sample(name, text, score) for name in WORDS for text, score in scores.items()]
    fresh += [sample(FROZEN, text, score, trace="asked") for text, score in scores.items()]
    fresh += [sample("snow", item, 1.0), *(sample("nobody asked this", text, at) for text, at in scores.items())]
    dataset = Place(tmp_path).build(rows, {"suite": [item]}, gone=("rain",), frozen=(chat(FROZEN),), fresh=tuple(fresh))
    assert dataset.winners is not None
    found = read(dataset.winners)
    assert {each["trace_ids"][0] for each in found} == set(WORDS) - {"sun", "rain"}
    assert {(each["completion"], each["score"]) for each in found} == {("good", 1.0)}
    assert dataset.evidence.winners == len(found)


def judged(n: int, agreed: bool = True) -> list[LabelledRow]:
    """Two completions of each of so many prompts, and what a judge makes of them."""
    scores = (0.0, 1.0)
    fresh = [sample(f"what is {i}", f"a{i}{score}", score, trace=f"r{i}") for i in range(n) for score in scores]
    return [each._replace(judge=each.final_reward, reward_model=each.final_reward if agreed else 0.5) for each in fresh]


@pytest.mark.parametrize(("prompts", "method"), [(120, "sft"), (60, "none")])
def test_many_winners_of_an_admitted_judge_are_trained_on(tmp_path: Path, prompts: int, method: str) -> None:
    rows = [row(f"r{n}", None, prompt=f"what is {n}", reference=None) for n in range(prompts)]
    dataset = Place(tmp_path).build(rows, fresh=tuple(judged(prompts)))
    assert dataset.evidence.scorers.names == ("judge",)
    decision = choose(dataset.evidence, SETTINGS, 0.5)
    assert decision.method == method
    if method == "none":
        assert "best of k: 60, needs >= 100" in decision.lacks["sft"]
    else:
        only = "admission of the only scorer, judge: 100.0% (assumed, n=0), lower bound >= 100.0%"
        assert only in decision.reasons


def test_scorers_that_disagree_lead_to_no_training(tmp_path: Path) -> None:
    rows = [row(f"r{n}", None, prompt=f"what is {n}", reference=None) for n in range(120)]
    admitted = RewardModelReport(iteration="i", model=ModelRef(uri="m", digest="m"), admitted=True)
    place = Place(tmp_path)
    weights = {"rewards": Rewards(fresh=Weights(judge=0.5, reward_model=0.5))}
    dataset = place.build(rows, fresh=tuple(judged(120, agreed=False)), reward_model=admitted, sections=weights)
    assert dataset.evidence.scorers.names == ("reward_model", "judge")
    decision = choose(dataset.evidence, SETTINGS, 0.5)
    assert decision.method == "none"
    assert "gain of the best of k, as another scorer sees it" in "; ".join(decision.lacks["sft"])


SPREAD = {"sun": (0.0, 1.0), "moon": (0.4, 0.6), "rain": (0.5, 0.5), "wind": (0.5, None), "snow": (0.1, 0.9)}
FRESH = tuple(
    sample(name, f"answer {number}", score) for name, scores in SPREAD.items() for number, score in enumerate(scores)
)


def scored(root: Path, method: str, rows: list[LabelledRow] = ROWS) -> PreferenceDataset:
    return Place(root).build(rows, fresh=FRESH, method=method)


def test_referenced_and_logged_samples_have_no_spread() -> None:
    logged = [each._replace(fresh=False) for each in (sample("moon", "a", 0.0), sample("moon", "b", 1.0))]
    checked = [sample("rain", "a", 0.0)._replace(reference="4"), sample("rain", "b", 1.0)]
    spread = [sample("sun", "a", 0.0), sample("sun", "b", 1.0)]
    assert [*in_order_of_spread(by_prompt([*logged, *checked, *spread]))] == [spread[0].prompt]


def test_prompts_whose_samples_differ_are_grpos_material(tmp_path: Path) -> None:
    dataset = scored(tmp_path, "grpo")
    assert asked(dataset.prompts) == ["sun", "snow", "moon"], "the largest spread first"
    assert {(each["reference"], each["verifier"], each["frontier"]) for each in read(dataset.prompts)} == {
        (None, None, False)
    }
    assert (dataset.evidence.frontier_prompts, dataset.evidence.scored_prompts) == (0, 3)
    decision = choose(dataset.evidence, SETTINGS.model_copy(update={"method": "grpo"}), 0.0)
    assert (decision.method, decision.forced) == ("grpo", True)


def test_what_can_be_checked_is_never_mixed_with_scores(tmp_path: Path) -> None:
    dataset = scored(tmp_path, "grpo", [*ROWS, *answers("even", 1.0, 0.0)])
    assert asked(dataset.prompts) == ["even"]
    assert (dataset.evidence.policy_prompts, dataset.evidence.scored_prompts) == (1, 3)
