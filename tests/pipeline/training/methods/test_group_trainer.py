"""What the recipe asks of GRPO and TRL has no argument for: leave-one-out, dynamic sampling, the split of a step."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.recipe.methods import GRPO
from pipeline.training.methods.trl_trainers import leave_one_out
from tests.fork_server import ForkServer, result_of
from tests.pipeline.training.plans import folder, make_plan

REWARD = st.one_of(st.none(), st.floats(0, 1))


@given(st.integers(2, 6).flatmap(lambda size: st.tuples(st.just(size), st.lists(REWARD, min_size=size, max_size=size))))
def test_leave_one_out_compares_with_the_mean_of_the_others(drawn: tuple[int, list[float | None]]) -> None:
    size, rewards = drawn
    scored = [reward for reward in rewards if reward is not None]
    mean = sum(scored) / len(scored) if scored else 0.0
    for reward, factor in zip(rewards, leave_one_out(rewards, size), strict=True):
        if reward is None or len(scored) < 2:
            continue
        others = (sum(scored) - reward) / (len(scored) - 1)
        assert (reward - mean) * factor == pytest.approx(reward - others, abs=1e-12)


def run(root: Path, fork_server: ForkServer, **changes: Any) -> list[dict[str, float]]:
    settings = GRPO(steps=2, prompts_per_step=6, num_generations=4, max_completion_tokens=32, **changes)
    store, plan = make_plan(root, "grpo", grpo=settings)
    path = folder(store, plan) / "plan.json"
    assert fork_server.attempt(path).code == 0, fork_server.said()
    return list(result_of(path).metrics)


@pytest.mark.slow
def test_dynamic_sampling_replaces_groups_without_a_gradient(tmp_path: Path, fork_server: ForkServer) -> None:
    dynamic = run(tmp_path / "dynamic", fork_server, dynamic_sampling=6)
    budget = run(tmp_path / "budget", fork_server, dynamic_sampling=2, temperature=0.05)
    assert all(row["frac_reward_zero_std"] == 0 for row in dynamic)
    assert any(row["dynamic/rounds"] > 1 for row in dynamic)
    for row in dynamic:
        drawn = row["seconds/generate"] * row["generate_tokens_per_s"]
        kept = 24 * row["completions/mean_length"]
        assert drawn == pytest.approx(kept, rel=0.5) if row["dynamic/rounds"] == 1 else drawn > kept * 1.02
    assert all(row["dynamic/rounds"] == 2 for row in budget), "near greedy, most groups agree: the budget ends it"
    assert any(row["frac_reward_zero_std"] > 0 for row in budget), "what is still missing stays as it is"


@pytest.mark.slow
def test_a_step_is_split_into_what_it_spent(tmp_path: Path, fork_server: ForkServer) -> None:
    rows = run(tmp_path, fork_server, beta=0.1, num_iterations=2, baseline="leave_one_out")
    parts = ("generate", "reward", "logprobs", "update")
    assert all({f"seconds/{part}" for part in parts} <= rows[0].keys() for _ in rows)
    for row in rows:
        spent = sum(row.get(f"seconds/{part}", 0.0) for part in parts)
        assert spent == pytest.approx(row["seconds/step"], rel=1e-6)
    assert "reward" in rows[0] and "reward" not in rows[1], "one batch of generation serves two steps"
    assert "generate_tokens_per_s" not in rows[1]
    assert all(row["tokens_per_s"] > 0 for row in rows)
