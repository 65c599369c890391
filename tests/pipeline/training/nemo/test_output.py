"""Lines of output to rows: the steps that NeMo RL's loggers are given, validations; and its checkpoints."""

import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training.nemo.output import Output, Row, SavedCheckpoint, best, find_flaw, whole
from pipeline.training.nemo.start import LOGGED


def logged(step: int, prefix: str, **values: float) -> str:
    return LOGGED + json.dumps({"step": step, **{f"{prefix}/{name}": value for name, value in values.items()}}) + "\n"


def step_lines(step: int) -> str:
    """As a GRPO step logs, with seed 003's figures of its 100th."""
    return "".join(
        [
            f"{'=' * 25} Step {step}/100 {'=' * 25}\n▶ Preparing batch...\n",
            logged(step, "validation", accuracy=0.625, avg_length=903.0),
            logged(step, "timing/validation", total_validation_time=24.44),
            f"Saving checkpoint for step {step}...\n",
            logged(step, "train", loss=0.0351, reward=0.2407, mean_gen_tokens_per_sample=903.4531, grad_norm=1.2,
                   kl_penalty=0.015, approx_entropy=0.4, truncation_rate=0.125, lr=1e-6),
            logged(step, "performance", tokens_per_sec_per_gpu=1087.21, tokens_per_sec=17395.32,
                   train_fp_utilization=0.1629),
            logged(step, "timing/train", total_step_time=122.87, generation=39.05, checkpointing=21.48,
                   policy_training=16.89, policy_and_reference_logprobs=7.74, reward_calculation=0.03),
        ]
    )  # fmt: skip


def read(text: str) -> list[Row]:
    output = Output()
    rows = [*map(output.read, text.splitlines(keepends=True)), output.flush()]
    return [row for row in rows if row is not None]


def test_a_step_of_nemo_rl_becomes_a_row() -> None:
    (row,) = read(step_lines(100))
    assert row == {
        "step": 100,
        "loss": 0.0351,
        "reward": 0.2407,
        "grad_norm": 1.2,
        "kl": 0.015,
        "entropy": 0.4,
        "completions/mean_length": 903.4531,
        "completions/clipped_ratio": 0.125,
        "held_out/accuracy": 0.625,
        "held_out/length": 903.0,
        "seconds/step": 122.87 - 21.48 - 24.44,
        "seconds/generate": 39.05,
        "seconds/save": 21.48,
        "seconds/update": 16.89,
        "seconds/logprobs": 7.74,
        "seconds/reward": 0.03,
        "seconds/validation": 24.44,
        "tokens_per_s_per_device": 1087.21,
        "tokens_per_s": 17395.32,
        "mfu": 0.1629,
    }


def test_a_row_is_whole_once_its_times_are_logged() -> None:
    output, lines = Output(), (step_lines(41) + step_lines(42)).splitlines(keepends=True)
    known = [(at, row["step"]) for at, line in enumerate(lines) if (row := output.read(line))]
    assert known == [(len(lines) // 2 - 1, 41), (len(lines) - 1, 42)]


def test_a_step_that_was_not_finished_is_no_row() -> None:
    assert not read(logged(4, "validation", accuracy=0.5))
    assert not read(logged(0, "timing/setup", total_setup_time=60.0))


def test_what_the_base_model_can_do_is_the_row_of_step_0() -> None:
    before = "▶ Starting validation at step 0...\n" + logged(0, "validation", accuracy=0.25)
    assert read(before) == [{"step": 0, "held_out/accuracy": 0.25}]
    assert [row["step"] for row in read(before + step_lines(1))] == [0, 1]


def test_a_line_that_was_cut_loses_its_values_alone() -> None:
    cut = logged(1, "train", loss=0.5)[:-5] + "\n"
    (row,) = read(cut + logged(1, "train", loss=0.25) + logged(1, "timing/train", total_step_time=2.0))
    assert row == {"step": 1, "loss": 0.25, "seconds/step": 2.0}


@given(st.lists(st.text(), max_size=30))
def test_no_line_whatever_stops_a_training(lines: list[str]) -> None:
    output = Output()
    assert not any(output.read(line) for line in lines)


def checkpoint(root: Path, step: int, lora: bool = True, **info: float) -> Path:
    folder = root / f"step_{step}"
    weights = folder / "policy" / "weights" / "model"
    weights.mkdir(parents=True)
    if lora:
        (weights / "adapter_model.safetensors").write_bytes(b"x")
        (weights / "adapter_config.json").write_text("{}")
    else:
        (weights / ".metadata").write_bytes(b"dcp")
        (weights / "__0_0.distcp").write_bytes(b"shard")
    for name in ("optimizer/optim/__0_0.distcp", "tokenizer/tokenizer.json"):
        (folder / "policy" / name).parent.mkdir(parents=True)
        (folder / "policy" / name).write_bytes(b"x")
    (folder / "training_info.json").write_text(json.dumps({"total_steps": step, **info}))
    (folder / "config.yaml").write_text("{}")
    (folder / "train_dataloader.pt").write_bytes(b"x")
    return folder


FILES = {
    True: [
        "training_info.json", "config.yaml", "train_dataloader.pt", "policy/optimizer", "policy/tokenizer",
        "policy/weights", "policy/weights/model/adapter_config.json", "policy/weights/model/adapter_model.safetensors",
    ],
    False: ["policy/weights", "policy/weights/model/.metadata"],
}  # fmt: skip


@pytest.mark.parametrize(("lora", "name"), [(lora, name) for lora, names in FILES.items() for name in names])
def test_checkpoint_without_one_of_its_parts_is_passed_over(lora: bool, name: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, 10, lora)
    torn = checkpoint(tmp_path, 20, lora) / name
    shutil.rmtree(torn) if torn.is_dir() else torn.unlink()
    said: list[str] = []
    assert [each.step for each in whole(tmp_path, lora, said.append)] == [10]
    assert len(said) == 1 and "step_20" in said[0]


@pytest.mark.parametrize("name", ["policy/optimizer/optim/__0_0.distcp", "train_dataloader.pt", "training_info.json"])
def test_an_empty_file_is_seen(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 10)
    assert find_flaw(folder, lora=True) is None
    (folder / name).write_bytes(b"")
    assert find_flaw(folder, lora=True) is not None


def test_the_number_in_the_name_is_the_one_inside(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 10).rename(tmp_path / "step_30")
    assert find_flaw(folder, lora=True) == "training_info.json is of step 10"


def test_nemo_rl_does_not_find_what_is_set_aside(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10)
    (checkpoint(tmp_path, 20) / "training_info.json").unlink()
    (tmp_path / "tmp_step_30" / "policy").mkdir(parents=True)
    said: list[str] = []
    for _ in range(2):
        whole(tmp_path, True, said.append)
    assert {path.name for path in tmp_path.iterdir()} == {"step_10", "torn_step_20"}
    assert len(said) == 2 and any("tmp_step_30" in line for line in said) and any("step_20" in line for line in said)


@pytest.mark.parametrize(
    ("accuracies", "step"),
    [
        ({1: 0.2, 2: 0.9, 3: 0.4}, 2),
        ({1: 0.5, 2: 0.5}, 2),
        ({1: 0.1, 2: math.nan}, 1),
        ({1: 0.1, 2: None}, 1),
        ({1: math.nan, 2: None}, 2),
    ],
)
def test_the_best_is_by_accuracy_and_nan_ranks_worst(accuracies: dict[int, float | None], step: int) -> None:
    saved = [SavedCheckpoint(n, Path(), {} if a is None else {"val:accuracy": a}) for n, a in accuracies.items()]
    found = best(saved)
    assert found is not None and found.step == step
    assert best([]) is None
