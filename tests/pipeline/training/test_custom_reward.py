"""GRPO rewarded by the user's own function: the same sums as for logged completions, in a training of its own."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pytest import approx

from benchmarks.kills import result_of
from pipeline.recipe.custom import located
from pipeline.recipe.methods import GRPO
from pipeline.recipe.rewards import Rewards, Weights
from pipeline.rewards.custom import CustomScorer
from pipeline.rewards.verifiers import Grader
from pipeline.training.result import InvalidPlan
from pipeline.training.reward_function import RewardFunction
from pipeline.training.worker import work
from tests.fork_server import ForkServer
from tests.pipeline.rewards.functions import BAD, QUALITY, write_function
from tests.pipeline.rewards.test_custom import ANSWERS, GOLD
from tests.pipeline.training.plans import REWARDS, folder, make_plan

pytestmark = pytest.mark.slow


SHORTER = """
    def reward(prompt, completion, reference, metadata):
        assert prompt[-1]["role"] == "user" and reference and metadata == {}
        print("nobody may read this as progress")
        return 1 / (1 + len(completion))
"""


def batch(prompt: list[dict[str, str]], texts: list[str], reference: str, verifier: str) -> dict[str, Any]:
    """As TRL hands it over."""
    columns = {"prompts": prompt, "completion_ids": [], "reference": reference, "verifier": verifier}
    answers = [[{"role": "assistant", "content": text}] for text in texts]
    return {"completions": answers, **{name: [value] * len(texts) for name, value in columns.items()}}


def test_fresh_completions_are_worth_the_seeds_sum(tmp_path: Path) -> None:
    section = write_function(tmp_path, QUALITY, "quality")
    settings = Rewards(verified=Weights(custom=1.0), custom=section)
    question = [{"role": "user", "content": "How do I survive the loss of a zone?"}]
    metrics: dict[str, float] = {}
    with closing(Grader(settings.verifier)) as check, closing(CustomScorer(section)) as scorer:
        reward = RewardFunction(settings, check, scorer)
        rewards = reward(**batch(question, list(ANSWERS), GOLD, "normalised"), log_metric=metrics.__setitem__)
    assert rewards == approx(list(ANSWERS.values()), abs=1e-12)
    assert metrics["component/custom"] == approx(1.0)


def test_a_failure_of_the_function_leaves_a_completion_out(tmp_path: Path) -> None:
    section = write_function(tmp_path, BAD, timeout_s=1.0)
    settings = Rewards(verified=Weights(correct=1.0, custom=2.0), custom=section)
    texts = ["hangs", "NaN", "1e9", "int"]
    with closing(Grader(settings.verifier)) as check, closing(CustomScorer(section)) as scorer:
        reward = RewardFunction(settings, check, scorer)
        rewards = reward(**batch([], texts, "4", "math"), log_metric=lambda name, value: None)
    assert rewards == [None, None, None, approx(2 / 3)]


def test_grpo_trains_on_the_users_own_reward(tmp_path: Path, fork_server: ForkServer) -> None:
    section = located(write_function(tmp_path / "f", SHORTER), tmp_path)
    rewards = Rewards(min_coverage=0, verified=Weights(correct=1.0, custom=1.0), custom=section)
    grpo = GRPO(steps=2, prompts_per_step=4, num_generations=4, max_completion_tokens=32)
    store, plan = make_plan(tmp_path / "root", rewards=rewards, grpo=grpo)
    path = folder(store, plan) / "plan.json"
    assert json.loads(path.read_text())["rewards"]["custom"]["digest"] == section.digest
    assert fork_server.attempt(path).code == 0, fork_server.said()
    assert "nobody may read this" not in fork_server.said()
    steps = result_of(path).metrics
    assert len(steps) == 2
    assert all(step["abstained"] == 0 for step in steps)
    for step in steps:  # no two lengths of these are alike by chance: the function has its part in what is learned
        assert step["component/custom"] and step["component/custom"] + step.get("component/correct", 0) == approx(1.0)


ODD = """
    def reward(prompt, completion, reference, metadata):
        assert (metadata == {"tier": "gold"}) == bool(int(reference) % 2), metadata
        return 1 / (1 + len(completion))
"""


def test_metadata_decides_a_digest_where_a_function_sees_it(tmp_path: Path) -> None:
    section = located(write_function(tmp_path / "f", ODD), tmp_path)
    own = Rewards(min_coverage=0, verified=Weights(custom=1.0), custom=section)
    digests = {
        name: make_plan(tmp_path / name, rewards=rewards, metadata=metadata)[1].digest()
        for name, rewards, metadata in (
            ("nobody's", REWARDS, "{}"),
            ("unseen", REWARDS, '{"tier": "gold"}'),
            ("none", own, "{}"),
            ("some", own, '{"tier": "gold"}'),
        )
    }
    assert digests["nobody's"] == digests["unseen"] and digests["none"] != digests["some"]


def test_a_function_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    section = located(write_function(tmp_path / "f", SHORTER), tmp_path)
    rewards = Rewards(min_coverage=0, verified=Weights(custom=1.0), custom=section)
    store, plan = make_plan(tmp_path / "root", rewards=rewards)
    write_function(tmp_path / "f", SHORTER + "\n    # shorter still\n")
    with pytest.raises(InvalidPlan, match=r"rewards\.custom\.code: .*begin a new iteration"):
        work(plan, folder(store, plan), 0.0)
