"""What GRPO's steps take."""

from pathlib import Path

import pytest

from benchmarks.kills import result_of
from pipeline.recipe.methods import GRPO
from tests.fork_server import ForkServer
from tests.pipeline.training.plans import folder, make_plan


@pytest.mark.slow
def test_a_step_is_split_into_what_it_spent(tmp_path: Path, fork_server: ForkServer) -> None:
    settings = GRPO(
        steps=2, prompts_per_step=6, num_generations=4, max_completion_tokens=32, beta=0.1, num_minibatches=2
    )
    store, plan = make_plan(tmp_path, "grpo", grpo=settings)
    path = folder(store, plan) / "plan.json"
    assert fork_server.attempt(path).code == 0, fork_server.said()
    rows = result_of(path).metrics
    parts = ("generate", "reward", "logprobs", "update")
    assert all({f"seconds/{part}" for part in parts} <= rows[0].keys() for _ in rows)
    for row in rows:
        spent = sum(row.get(f"seconds/{part}", 0.0) for part in parts)
        assert spent == pytest.approx(row["seconds/step"], rel=1e-6)
    assert "reward" in rows[0] and "reward" not in rows[1], "one batch of generation serves two steps"
    assert "generate_tokens_per_s" not in rows[1]
    assert all(row["tokens_per_s"] > 0 for row in rows)
