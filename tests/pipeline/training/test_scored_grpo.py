"""GRPO on prompts that no reference can check: who scores, who watches, and what ends it."""

import hashlib
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.kills import result_of
from pipeline.core.storage import model_ref
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Rewards, Sentinel, Validation
from pipeline.recipe.custom import located
from pipeline.recipe.methods import GRPO
from pipeline.recipe.rewards import RewardModelSettings, Weights
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.training.journal import read_rows
from pipeline.training.result import NEVER_RETRY
from pipeline.training.scorers import spending
from tests.fork_server import ForkServer
from tests.pipeline.rewards.functions import write_function
from tests.pipeline.rewards.judge.endpoint import Request, Said, Server, parts, scored, serving
from tests.pipeline.training.plans import folder
from tests.pipeline.training.scored_plans import loves, make_scored_plan, rubric

LENGTH = """
    def reward(prompt, completion, reference, metadata):
        assert prompt[-1]["role"] == "user" and reference is None
        return 1 / (1 + len(completion))
"""
WITHOUT_7 = """
    def reward(prompt, completion, reference, metadata):
        return 0.0 if "7" in completion else 1.0
"""
REPORT = RewardModelReport(iteration="", model=model_ref(MODEL_DIR), admitted=True)


def by_text(server: Server, request: Request, place: int) -> Said:
    return scored(grade(parts(request)["answer to be scored"]))


def grade(text: str) -> int:
    return hashlib.sha256(text.encode()).digest()[0] % 5 + 1


def custom(root: Path, source: str, **weights: float) -> dict[str, Any]:
    section = located(write_function(root / "function", source), root / "function")
    return {"custom": section, "fresh": Weights(custom=1.0, **weights)}


def plan_path(root: Path, *args: Any, **changes: Any) -> Path:
    store, plan = make_scored_plan(root / "data", *args, **changes)
    return folder(store, plan) / "plan.json"


BOTH = Weights(judge=0.5, reward_model=0.5)
SCORED: dict[str, Any] = {"judge": rubric(), "fresh": BOTH, "reward_model": RewardModelSettings()}


@pytest.mark.parametrize(
    ("rewards", "changes", "complaint"),
    [
        ({}, {}, "rewards.fresh weighs no scorer that the recipe has"),
        ({"judge": rubric()}, {}, "rewards.fresh pays by judge alone, and nothing else could watch"),
        ({"judge": rubric(), "fresh": BOTH}, {"validation": Validation()}, "Set training.validation.every_steps"),
        ({"judge": rubric()}, {"engine": "nemo_rl"}, "training.engine nemo_rl has no second scorer"),
        (SCORED, {}, "reward model may not score a training: it is not there"),
        (
            SCORED,
            {"report": REPORT.model_copy(update={"admitted": False, "reasons": ("AUC .5",)})},
            "reward model may not score a training: AUC .5",
        ),
        (SCORED, {"report": REPORT, "held_out": False}, r"raise selection\.held_out_share"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_plan(
    rewards: dict[str, Any], changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_scored_plan(tmp_path, Rewards(min_coverage=0, **rewards), **changes)


def test_the_second_scorer_is_the_one_that_weighs_least(tmp_path: Path) -> None:
    def watching(name: str, fresh: Weights) -> str:
        settings: dict[str, Any] = {"judge": rubric(), "reward_model": RewardModelSettings()}
        _, plan = make_scored_plan(tmp_path / name, Rewards(min_coverage=0, fresh=fresh, **settings), REPORT)
        assert plan.scorers is not None and plan.answer_kl_stop == 4.0
        return plan.scorers.watching

    assert watching("a", Weights(judge=0.7, reward_model=0.3)) == "reward_model"
    assert watching("b", BOTH) == "judge"
    assert watching("c", Weights(reward_model=1.0)) == "judge", "the reward does not weigh it at all"


@pytest.mark.slow
def test_a_killed_training_asks_the_judge_nothing_twice(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fickle(server: Server, request: Request, place: int) -> Said:
        text = str(parts(request))
        asked.append(text)
        return scored(grade(text) if asked.count(text) == 1 else 1)

    rewards = Rewards(min_coverage=0, judge=rubric(), **custom(tmp_path, LENGTH, judge=1.0))
    path = plan_path(tmp_path, rewards)
    with serving(fickle) as server:
        monkeypatch.setenv("JUDGE_URL", server.url)
        assert fork_server.attempt(path, signal.SIGKILL, at="step 3/4").code != 0
        before = {row.step: row.metrics.get("reward") for row in read_rows(path.with_name("metrics.jsonl"))[0]}
        assert fork_server.attempt(path).code == 0, fork_server.said()
    assert "resuming at step-000002" in fork_server.said()
    assert len(asked) == len(set(asked)) > 0, "each completion once, those of step 3 too"
    result = result_of(path)
    assert [row["reward"] for row in result.metrics if row["step"] == 3] == [before[3]]
    assert result.judge_tokens == spending(path.parent).tokens == 100 * len(asked)


@pytest.mark.slow
def test_a_judge_that_is_away_ends_the_training_with_its_name(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = Rewards(min_coverage=0, judge=rubric(), **custom(tmp_path, LENGTH, judge=1.0))
    path = plan_path(tmp_path, rewards)
    monkeypatch.delenv("JUDGE_URL", raising=False)
    assert fork_server.attempt(path).code == NEVER_RETRY
    assert "JUDGE_URL is not set" in fork_server.said()
    with serving(by_text) as server:
        url = server.url
    monkeypatch.setenv("JUDGE_URL", url)
    assert fork_server.attempt(path).code == 0, fork_server.said()
    result = result_of(path)
    assert result.health.verdict == "STOP"
    reasons = {finding.rule: finding.reason for finding in result.health.findings}
    assert reasons["unscored"] == "no completion of the step has a reward: judge_unreachable"
    assert (result.checkpoint.step, result.checkpoint.model.digest) == (0, model_ref(MODEL_DIR).digest)


@pytest.mark.variant
@pytest.mark.slow
def test_over_optimisation_is_stopped_by_the_second_scorer(tmp_path: Path, fork_server: ForkServer) -> None:
    """Users love a 7, which the second scorer forbids."""
    report = loves("7", tmp_path / "thumbs")
    given: dict[str, Any] = custom(tmp_path, WITHOUT_7) | {
        "fresh": Weights(reward_model=1.0),
        "judged": Weights(custom=1.0),
    }
    rewards = Rewards(min_coverage=0, reward_model=RewardModelSettings(), **given)
    grpo = GRPO(
        steps=40, prompts_per_step=8, num_generations=8, max_completion_tokens=32, learning_rate=4e-3, kl_stop=None
    )
    asked = Validation(every_steps=4, prompts=48, samples=2, max_completion_tokens=32)
    no_kl = Sentinel(kl_stop=100.0)
    path = plan_path(tmp_path, rewards, report, grpo=grpo, validation=asked, sentinel=no_kl)
    assert fork_server.attempt(path).code == 0, fork_server.said()
    result = result_of(path)
    stopped = next(finding for finding in result.health.findings if finding.verdict == "STOP")
    assert stopped.rule == "second_score", result.health
    assert stopped.step < 40
    rewarded = [row["reward"] for row in result.metrics if "reward" in row]
    assert rewarded[-1] > rewarded[0], "its own reward rose all the while"
    scores = {row["step"]: row["held_out/second_score"] for row in result.metrics if "held_out/second_score" in row}
    best = max((score, -step) for step, score in scores.items() if 0 < step < stopped.step)
    assert result.checkpoint.step == -best[1] < stopped.step


def test_an_unended_completion_is_worth_nothing_to_anybody(tmp_path: Path) -> None:
    from pipeline.rewards.records import Finding
    from pipeline.training.reward_function import RewardFunction
    from pipeline.training.scorers import FreshAnswer, FreshScores

    shown: list[str] = []

    def judge(answers: Any) -> list[Finding]:
        shown.extend(answer.text for answer in answers)
        return [Finding(None, "judge_timeout") if a.text == "mute" else Finding(0.75) for a in answers]

    settings = Rewards(fresh=Weights(judge=0.5, length=0.5))
    scores = FreshScores({"judge": judge}, ("judge",), "judge")
    reward = RewardFunction(settings, lambda tasks: [], scores=scores, stops={0})  # pyright: ignore[reportArgumentType]
    texts = ["whole", "cut", "mute", "x" * 60]
    rewards = reward(
        prompts=[[]] * 4,
        completions=[[{"role": "assistant", "content": text}] for text in texts],
        completion_ids=[[5, 0], [5, 6], [5, 0], [0]],
        reference=[None] * 4,
        verifier=[None] * 4,
        log_metric=lambda name, value: None,
    )
    assert rewards == [0.375, 0.0, None, 0.875]
    assert shown == ["whole", "mute", "x" * 60]
    answers = [FreshAnswer("[]", text, text != "cut") for text in texts]
    assert [finding.value for finding in scores.watching(answers)] == [0.75, 0.0, None, 0.75]


def test_another_reward_model_is_another_training(tmp_path: Path) -> None:
    rewards = Rewards(min_coverage=0, fresh=BOTH, judge=rubric(), reward_model=RewardModelSettings())
    other = REPORT.model_copy(update={"model": model_ref(MODEL_DIR).model_copy(update={"digest": "other"})})
    first, second = (make_scored_plan(tmp_path / n, rewards, r)[1] for n, r in (("a", REPORT), ("b", other)))
    assert first.digest() != second.digest()
    for data in (first.data, first.held_out):
        assert data is not None and set(pq.read_table(data.uri)["reference"].to_pylist()) == {None}
