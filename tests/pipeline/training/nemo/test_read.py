"""NeMo RL's checkpoints: whole ones, half-written ones at each place, the newest and the best."""

import json
import math
import shutil
from pathlib import Path

import pytest

from pipeline.training.nemo.output import SavedCheckpoint, best, find_flaw, whole


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
