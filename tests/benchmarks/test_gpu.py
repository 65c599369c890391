"""The GPU benchmark where there is none: its shapes, its plans, its sums, and the embedded model killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.gpu import (
    MEMORY,
    PARTLY_RIGHT,
    PARTS,
    SHAPES,
    SMALL,
    SPEED,
    WARM_UP,
    Run,
    figures,
    table,
    timed,
)
from benchmarks.gpu_data import QWEN2_1_5B, write_base, write_plan
from benchmarks.gpu_matrix import Variant, attempt, variants
from benchmarks.gpu_serving import ATTENTION, attention, serve
from pipeline.core.locations import Document
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Accelerator, Checkpoints, Distribution
from pipeline.recipe.methods import MethodSettings
from pipeline.training.plan import TrainingPlan

TINY = {**QWEN2_1_5B, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize(("name", "weights"), [("1.5B", 1_543_714_304), ("7B", 7_615_616_512)])
def test_the_shape_is_that_of_the_real_model(name: str, weights: int) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPES[name]))
    assert sum(each.numel() for each in model.parameters()) == weights


@pytest.mark.variant
@pytest.mark.slow
def test_random_weights_draw_known_ids_that_differ(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_base(tmp_path, TINY, "cpu")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    asked = tokenizer("Mia has 7 pears", return_tensors="pt")
    drawn = model.generate(**asked, do_sample=True, max_new_tokens=8, num_return_sequences=8, top_k=0)
    assert model.get_output_embeddings().weight.shape[0] == QWEN2_1_5B["vocab_size"]
    assert int(drawn.max()) < len(tokenizer)
    assert len({tuple(row.tolist()) for row in drawn}) > 4


@pytest.mark.parametrize("run", [*SPEED, *MEMORY], ids=lambda run: run.name)
def test_a_plan_has_rows_for_every_step(tmp_path: Path, run: Run) -> None:
    h200 = Accelerator(name="NVIDIA H200", peak_tflops=989.0)
    path = write_plan(tmp_path, MODEL_DIR, run.settings, h200, PARTLY_RIGHT, 8, Checkpoints(), **run.training)
    plan = TrainingPlan.model_validate_json(path.read_text(), context=Document(path))
    assert plan.method == run.settings
    assert plan.data is not None
    rows = pq.read_table(plan.data.uri).to_pylist()
    assert len(rows) == run.settings.scheduled_rows
    assert min(len(row["prompt"][0]["content"]) for row in rows) > 300, "eight problems to a row"


def test_figures_leave_the_warm_up_out() -> None:
    slow = {"seconds/step": 100.0, "seconds/generate": 99.0, "tokens_per_s": 1.0, "memory_mb": 9.0}
    usual = {
        "seconds/step": 10.0, "seconds/generate": 4.0, "seconds/reward": 1.0, "seconds/logprobs": 2.0,
        "seconds/update": 2.5, "tokens_per_s": 500.0, "mfu": 0.2, "memory_mb": 2048.0,
    }  # fmt: skip
    actual = figures([*[slow] * WARM_UP, *[usual] * 3, {"held_out/accuracy": 0.5}])
    assert (actual["step"], actual["tokens_per_s"], actual["mfu"], actual["memory_mb"]) == (10.0, 500.0, 0.2, 2048.0)
    assert actual["other"] == pytest.approx(0.5)
    assert sum(actual[part] for part in (*PARTS, "other")) == pytest.approx(actual["step"])
    printed = table({"grpo": actual, "dpo": {**dict.fromkeys((*PARTS, "step", "other", "memory_mb"), 0.0)}})
    assert "20.0%" in printed
    assert printed.splitlines()[-1].split()[-3] == "-", "no MFU without a peak"


def test_the_matrix_has_every_method_under_every_strategy() -> None:
    names = set(map(str, variants()))
    assert {f"{method} fsdp2+offload lora" for method in MethodSettings.model_fields} <= names
    assert {"dpo zero3 all", "kto ddp nf4"} <= names


@pytest.mark.variant
@pytest.mark.slow
def test_a_training_that_fails_is_told_from_one_with_other_bits(tmp_path: Path) -> None:
    refused = attempt(Variant("sft", Distribution(), "nf4"), tmp_path)
    assert not refused.exact
    assert "nf4 needs a GPU" in str(refused)


@pytest.mark.variant
@pytest.mark.slow
def test_killed_training_ends_with_the_same_bits_and_account(tmp_path: Path) -> None:
    outcome = attempt(Variant("grpo", Distribution(), "lora"), tmp_path)
    assert outcome.exact
    assert outcome.resumed is not None
    assert outcome.resumed.killed.resumed_from == (2,)


@pytest.mark.variant
@pytest.mark.slow
def test_figures_of_a_real_training(tmp_path: Path) -> None:
    cpu = Accelerator(name="cpu", peak_tflops=1.0)
    taken = timed(SMALL, tmp_path, lambda name: MODEL_DIR, cpu)
    for name in ("embedded GRPO", "embedded DPO"):
        assert taken[name]["step"] > 0 and taken[name]["update"] > 0 and taken[name]["tokens_per_s"] > 0
    assert taken["embedded GRPO"]["generate"] > 0 and taken["embedded GRPO"]["end_s"] > 0


@pytest.mark.variant
@pytest.mark.slow
def test_answers_are_the_same_on_cpu_in_any_batch() -> None:
    served = serve(MODEL_DIR, 64, 16)
    assert served["same_in_the_same_batches"] == served["same_in_other_batches"] == 1
    drawn = attention(MODEL_DIR, 32, 16)
    assert drawn.keys() == ATTENTION.keys() and all(each["same"] == 1 for each in drawn.values())
