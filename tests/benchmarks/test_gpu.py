"""The GPU benchmark where there is none: its shapes, its plans, its sums, and the embedded model killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.gpu import PARTS, WARM_UP, figures, on_cpu, on_gpu, resume, table
from benchmarks.gpu_data import QWEN2_1_5B, write_base, write_plan
from pipeline.demo import MODEL_DIR
from pipeline.locations import Document
from pipeline.recipe import Checkpoints
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

TINY = {**QWEN2_1_5B, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_the_shape_is_that_of_the_real_model() -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**QWEN2_1_5B))
    assert sum(each.numel() for each in model.parameters()) == 1_543_714_304


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


@pytest.mark.parametrize("method", ["grpo", "dpo"])
def test_a_plan_has_rows_for_every_step(tmp_path: Path, method: str) -> None:
    case = on_gpu("NVIDIA H200")
    settings = case.settings[method]
    path = write_plan(tmp_path, MODEL_DIR, settings, case.accelerator, case.rewards, 8, Checkpoints())
    plan = TrainingPlan.model_validate_json(path.read_text(), context=Document(path))
    assert plan.method == settings
    assert plan.peak_tflops == 989.0
    assert plan.data is not None
    rows = pq.read_table(plan.data.uri).to_pylist()
    assert len(rows) == settings.steps * (16 if method == "grpo" else 64)
    assert min(len(row["prompt"][0]["content"]) for row in rows) > 300, "eight problems to a row"


def test_figures_leave_the_warm_up_out() -> None:
    slow = {"seconds/step": 100.0, "seconds/generate": 99.0, "tokens_per_s": 1.0, "memory_mb": 9.0}
    usual = {
        "seconds/step": 10.0, "seconds/generate": 4.0, "seconds/reward": 1.0, "seconds/logprobs": 2.0,
        "seconds/update": 2.5, "tokens_per_s": 500.0, "mfu": 0.2, "memory_mb": 2048.0,
    }  # fmt: skip
    result = TrainingResult.model_construct(metrics=(*[slow] * WARM_UP, *[usual] * 3, {"held_out/accuracy": 0.5}))
    actual = figures(result)
    assert (actual["step"], actual["tokens_per_s"], actual["mfu"], actual["memory_mb"]) == (10.0, 500.0, 0.2, 2048.0)
    assert actual["other"] == pytest.approx(0.5)
    assert sum(actual[part] for part in (*PARTS, "other")) == pytest.approx(actual["step"])
    printed = table({"grpo": actual, "dpo": {**dict.fromkeys((*PARTS, "step", "other", "memory_mb"), 0.0)}})
    assert "20.0%" in printed
    assert printed.splitlines()[-1].split()[-3] == "-", "no MFU without a peak"


@pytest.mark.variant
@pytest.mark.slow
def test_killed_training_ends_with_the_same_bits_and_account(tmp_path: Path) -> None:
    result = resume(on_cpu(), tmp_path, MODEL_DIR, "grpo")
    assert result.killed.resumed_from == (2,)
    assert result.same
    seen = figures(result.undisturbed)
    assert seen["step"] > 0
    assert seen["generate"] > 0
    assert seen["update"] > 0
    assert seen["tokens_per_s"] > 0
