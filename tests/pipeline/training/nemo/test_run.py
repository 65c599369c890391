"""A training by the second engine, against a stand-in with NeMo RL's layout: interrupted, half-written, gone wrong."""

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.core.storage import digest_dir, digest_file
from pipeline.recipe import Rewards
from pipeline.recipe.rewards import Weights
from pipeline.training.checkpoints.claims import Superseded, claim
from pipeline.training.nemo.render import configuration, workspace
from pipeline.training.nemo.run import run
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult
from tests.pipeline.rewards.functions import QUALITY, write_function
from tests.pipeline.rewards.test_custom import ANSWERS, GOLD
from tests.processes import is_alive, wait_for

from .plans import SECTIONS, make_plan

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PYTHON = (sys.executable, "-u")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The stand-in. Its examples have the keys that we set; test_render looks at the real ones."""
    root = tmp_path / "nemo-rl"
    shutil.copytree(HERE / "checkout", root)
    configs = root / "examples" / "configs"
    configs.mkdir()
    tree = configuration(make_plan(tmp_path / "example"), "/run", "/nemo", 100)
    del tree["defaults"]
    tree["env"] = {"math": {"num_workers": 8}}
    (configs / "grpo_math_1B.yaml").write_text(yaml.safe_dump(tree))
    behave(root)
    return root


def behave(checkout: Path, **behaviour: Any) -> None:
    (checkout / "behaviour.json").write_text(json.dumps(behaviour))


def trained(plan: TrainingPlan, folder: Path, checkout: Path, said: list[str] | None = None) -> TrainingResult:
    return run(plan, folder, checkout, (said if said is not None else []).append, PYTHON)


def interrupted(plan: TrainingPlan, folder: Path, checkout: Path, when: Callable[[str], bool], number: int) -> int:
    """The engine as a process that gets a signal once `when` is true of a line; its exit code."""
    (folder / "plan.json").write_text(plan.model_dump_json())
    command = [sys.executable, str(HERE / "trainer.py"), str(folder / "plan.json"), str(checkout)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if when(line):
                process.send_signal(number)
        return process.wait()


def steps(result: TrainingResult) -> list[float]:
    return [row["step"] for row in result.metrics]


def test_grpo_ends_with_a_merged_model_an_adapter_and_rows(checkout: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    plan = make_plan(tmp_path)
    result = trained(plan, tmp_path, checkout)
    assert steps(result) == [0, 1, 2, 3, 4, 5, 6]
    assert result.metrics[2] | {"reward": 0.5, "loss": 0.5, "held_out/accuracy": 0.5} == result.metrics[2]
    assert "kl" not in result.metrics[2], "there is no reference to be far from"
    assert result.metrics[2]["seconds/step"] == pytest.approx(0.5 - 0.1 - 0.05)
    assert (result.attempts, result.resumed_from) == (1, ())
    assert result.checkpoint.step == 6 and result.health.verdict == "PASS" and not result.preemptions
    assert result.goodput.productive_s + sum(result.goodput.badput_s.values()) == pytest.approx(result.goodput.total_s)
    for ref in (result.checkpoint.model, result.checkpoint.adapter):
        assert digest_dir(Path(ref.uri)) == ref.digest
    served = AutoModelForCausalLM.from_pretrained(result.checkpoint.model.uri)
    base = AutoModelForCausalLM.from_pretrained(plan.base.uri)
    adapted = PeftModel.from_pretrained(base, result.checkpoint.adapter.uri).merge_and_unload()
    weights = adapted.state_dict()
    assert all(torch.allclose(value, weights[name], atol=1e-6) for name, value in served.state_dict().items())
    kept = sorted(path.name for path in Path(workspace(plan, str(tmp_path)), "checkpoints").iterdir())
    assert kept == ["step_4", "step_6"], "keep_last 2 and keep_best 1, NeMo RL's way"


@pytest.mark.variant
def test_full_weights_are_converted(checkout: Path, tmp_path: Path) -> None:
    result = trained(make_plan(tmp_path, lora=None), tmp_path, checkout)
    model = Path(result.checkpoint.model.uri)
    assert result.checkpoint.adapter == result.checkpoint.model and (model / "model.safetensors").is_file()
    assert (model / "tokenizer.json").is_file() and not list(model.glob("*.bin"))
    assert digest_file(model / "model.safetensors") != digest_file(
        Path(make_plan(tmp_path).base.uri, "model.safetensors")
    )


def test_killed_and_terminated_it_ends_with_the_same_weights(checkout: Path, tmp_path: Path) -> None:
    plan, broken = make_plan(tmp_path / "whole"), make_plan(tmp_path / "broken")
    whole = trained(plan, tmp_path / "whole", checkout)
    behave(checkout, pause_at=3)
    assert interrupted(broken, tmp_path / "broken", checkout, lambda line: "step 3/6" in line, signal.SIGKILL) == -9
    wait_for(lambda: not is_alive(int((checkout / "pid").read_text())))  # no orphan writes beside its successor
    behave(checkout, pause_at=5)
    assert interrupted(broken, tmp_path / "broken", checkout, lambda line: "step 5/6" in line, signal.SIGTERM) == 143
    behave(checkout)
    said: list[str] = []
    result = trained(broken, tmp_path / "broken", checkout, said)
    assert result.checkpoint.adapter.digest == whole.checkpoint.adapter.digest
    assert steps(result) == steps(whole), "each step once"
    assert result.attempts == 3 and result.resumed_from == (2, 4) and "resuming at step 4" in said
    assert [(p.cause, p.step, p.lost_steps) for p in result.preemptions] == [("killed", 3, 1), ("SIGTERM", 5, 1)]


def test_a_save_under_way_is_given_the_grace(checkout: Path, tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    root = Path(workspace(plan, str(tmp_path)), "checkpoints")
    behave(checkout, pause_in=4, pause_at=4)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    command = [sys.executable, str(HERE / "trainer.py"), str(tmp_path / "plan.json"), str(checkout)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: (root / "tmp_step_4" / "config.yaml").exists())
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in (tmp_path / "journal.jsonl").read_text())
        (checkout / "finish").touch()
        assert process.wait() == 143
    assert (root / "step_4").is_dir() and not list(root.glob("tmp_*"))


def test_a_later_start_ends_the_engine_of_an_earlier_one(checkout: Path, tmp_path: Path) -> None:
    plan, own = make_plan(tmp_path), claim(tmp_path, 1)
    behave(checkout, pause_at=3)

    def say(line: str) -> None:
        if "step 2/6" in line:
            claim(tmp_path, 2)

    with pytest.raises(Superseded):
        run(plan, tmp_path, checkout, say, PYTHON, own.check)
    assert not is_alive(int((checkout / "pid").read_text()))


def test_a_half_written_checkpoint_is_passed_over_by_name(checkout: Path, tmp_path: Path) -> None:
    plan, said = make_plan(tmp_path), list[str]()
    behave(checkout, torn=4)
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1.*the machine died"):
        trained(plan, tmp_path, checkout)
    (Path(workspace(plan, str(tmp_path))) / "checkpoints" / "tmp_step_5").mkdir()
    behave(checkout)
    result = trained(plan, tmp_path, checkout, said)
    assert result.resumed_from == (2,) and steps(result) == [0, 1, 2, 3, 4, 5, 6]
    assert any("step_4 is passed over: training_info.json" in line for line in said)
    assert any("tmp_step_5 was never finished" in line for line in said)


def test_training_gone_wrong_is_stopped_at_its_best_checkpoint(checkout: Path, tmp_path: Path) -> None:
    behave(checkout, loss={"5": math.nan}, pause_at=5, accuracy={"0": 0.1, "2": 0.9, "4": 0.2})
    result = trained(make_plan(tmp_path, checkpoints={"every_steps": 2, "keep_best": 2}), tmp_path, checkout)
    assert result.health.verdict == "STOP" and result.health.findings[-1].step == 5
    assert result.checkpoint.step == 2


def test_kl_and_gradients_of_nemo_rl_reach_the_sentinel(checkout: Path, tmp_path: Path) -> None:
    logged = {str(step): {"kl_penalty": 0.9, "grad_norm": 20.0, "approx_entropy": 0.4} for step in range(1, 7)}
    behave(checkout, logged=logged)
    grpo = {**SECTIONS["grpo"].model_dump(), "beta": 0.01}
    result = trained(make_plan(tmp_path, grpo=grpo), tmp_path, checkout)
    assert {finding.rule: finding.verdict for finding in result.health.findings} == {"kl": "STOP", "grad_norm": "HOLD"}
    assert result.metrics[1] | {"kl": 0.9, "grad_norm": 20.0, "entropy": 0.4} == result.metrics[1]


@pytest.mark.variant
def test_the_seeds_reward_is_paid_through_ray(checkout: Path, tmp_path: Path) -> None:
    """By the real Ray, from the registered environment to the scorer's process: what TRL's reward function says."""
    pytest.importorskip("ray")
    custom = write_function(tmp_path, QUALITY, "quality")
    rewards = Rewards(verified=Weights(custom=1.0), custom=custom)
    row = {"prompt": [{"role": "user", "content": "Why?"}], "reference": GOLD, "verifier": "normalised"}
    behave(checkout, answers=[*ANSWERS, GOLD])
    result = trained(make_plan(tmp_path, rows=[row] * 24, rewards=rewards), tmp_path, checkout)
    scored = json.loads((checkout / "rewards.json").read_text())
    assert scored["train"] == pytest.approx([*ANSWERS.values(), 0.5 + 0.15], abs=1e-6)
    assert scored["validation"] == [0.0] * 5 + [1.0], "held-out answers are right or wrong"
    statistics = {"component/custom": 1.0, "accuracy": 1 / 6, "abstained": 0.0, "frac_reward_zero_std": 0.0}
    assert result.metrics[1] | statistics == pytest.approx(result.metrics[1])


def test_a_checkout_that_does_not_fit_is_refused(checkout: Path, tmp_path: Path) -> None:
    args = {"policy.generation.vllm_cfg.no_such_key": 1}
    plan = make_plan(tmp_path, grpo={**SECTIONS["grpo"].model_dump(), "trainer_args": args})
    with pytest.raises(ValueError, match="no_such_key"):
        trained(plan, tmp_path, checkout)
    with pytest.raises(ValueError, match="No NeMo RL in"):
        trained(plan, tmp_path, tmp_path)


@pytest.mark.variant
def test_a_conversion_that_leaves_a_gap_is_refused(checkout: Path, tmp_path: Path) -> None:
    (checkout / "gap").touch()
    with pytest.raises(ValueError, match=r"1 are missing, such as model\.norm\.weight"):
        trained(make_plan(tmp_path, lora=None), tmp_path, checkout)
    assert not (tmp_path / "model").exists()


def test_an_end_without_the_last_checkpoint_is_an_error(checkout: Path, tmp_path: Path) -> None:
    grpo = {**SECTIONS["grpo"].model_dump(), "steps": 5}
    behave(checkout, no_last=True)
    with pytest.raises(RuntimeError, match=r"step 5 is not there \(newest: 4\)"):
        trained(make_plan(tmp_path, grpo=grpo), tmp_path, checkout)
