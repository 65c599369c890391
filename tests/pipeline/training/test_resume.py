"""Whatever the schedule of kills, a training ends with the bits of the undisturbed one."""

import random
import signal
from pathlib import Path

import pytest

from benchmarks.kills import adapter_of, result_of, survive
from pipeline.recipe import Checkpoints, Validation
from pipeline.recipe.methods import GRPO
from tests.fork_server import ForkServer
from tests.pipeline.training.plans import folder, make_plan

pytestmark = pytest.mark.slow

SAVED = Checkpoints(every_steps=2)
ASKED = Validation(every_steps=4, prompts=8, samples=1, max_completion_tokens=32)
SMALL = {"prompts_per_step": 4, "num_generations": 4, "max_completion_tokens": 32, "learning_rate": 1e-3}
OFF_POLICY = GRPO(
    **SMALL,
    steps=8,
    num_minibatches=2,  # a batch of generation serves two steps
    beta=0.05,
    trainer_args={"per_device_train_batch_size": 4, "epsilon_high": 0.28, "scale_rewards": "none"},  # two micro-batches
)


@pytest.mark.variant  # test_trainer interrupts one of four
def test_any_schedule_of_kills_ends_with_the_same_bits(tmp_path: Path, fork_server: ForkServer) -> None:
    def plan(name: str) -> Path:
        store, made = make_plan(tmp_path / name, grpo=OFF_POLICY, checkpoints=SAVED, validation=ASKED)
        return folder(store, made) / "plan.json"

    undisturbed = plan("undisturbed")
    fork_server.attempt(undisturbed)
    whole, bits = result_of(undisturbed), adapter_of(undisturbed)
    interrupted = 0
    for seed in range(6):
        if interrupted >= 2:
            break
        broken = plan(f"broken-{seed}")
        attempts = survive(
            fork_server.attempt, broken, random.Random(f"several iterations/{seed}"), 3, whole.goodput.total_s
        )
        interrupted += len(attempts) - 1
        again = result_of(broken)
        assert adapter_of(broken) == bits, attempts
        assert again.checkpoint.model.digest == whole.checkpoint.model.digest
        held_out = [[row.get("held_out/accuracy") for row in found.metrics] for found in (whole, again)]
        assert held_out[0] == held_out[1], "what was measured is the same too"
        assert len(again.preemptions) <= len([a for a in attempts if a.code != 0]), "some were killed before they began"
    assert interrupted, "no kill hit a running training"


@pytest.mark.variant
def test_solved_training_ends_early_with_the_same_bits(tmp_path: Path, fork_server: ForkServer) -> None:
    quick = GRPO(**SMALL | {"prompts_per_step": 8, "learning_rate": 6e-3}, steps=14)
    often = Validation(every_steps=2, prompts=16, samples=2, max_completion_tokens=32)

    def plan(name: str) -> Path:
        store, made = make_plan(
            tmp_path / name, answer="8", grpo=quick, validation=often,
            checkpoints=Checkpoints(every_steps=3),
        )  # fmt: skip
        return folder(store, made) / "plan.json"

    undisturbed, broken = plan("undisturbed"), plan("broken")
    assert fork_server.attempt(undisturbed).code == 0, fork_server.said()
    whole = result_of(undisturbed)
    assert whole.health.verdict == "PASS" and whole.health.solved is not None
    solved = whole.health.solved.step
    assert whole.checkpoint.step == solved < 14 and whole.untrained_steps == 14 - solved
    assert [row["step"] for row in whole.metrics] == list(range(solved + 1))
    killed = (f"step {solved - 1}/14", signal.SIGKILL), ("ends here", signal.SIGKILL), ("ends here", signal.SIGTERM)
    codes = [fork_server.attempt(broken, sent, at=at).code for at, sent in killed]
    assert codes[:2] == [-signal.SIGKILL] * 2
    if codes[-1] != 0:  # the signal came before the result was there
        assert fork_server.attempt(broken).code == 0, fork_server.said()
    again = result_of(broken)
    assert adapter_of(broken) == adapter_of(undisturbed)
    assert again.checkpoint.model.digest == whole.checkpoint.model.digest
    assert (again.health, again.untrained_steps) == (whole.health, whole.untrained_steps)
    saved = {int(each.name.removeprefix("step-")) for each in (broken.parent / "checkpoints").glob("step-*")}
    assert saved and max(saved) < solved, "whoever resumes decides again"
