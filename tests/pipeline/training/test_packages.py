"""What a training needs on the machine that trains: named before anything is paid for."""

from pathlib import Path

import pytest

from pipeline.recipe import Distribution, Lora, Training
from pipeline.recipe.methods import GRPO
from pipeline.training.launch import training_faults
from tests.contexts import recipe_of

OFFLOADED = Training(distribution=Distribution(strategy="zero2", cpu_offload=True))


@pytest.mark.parametrize(
    ("training", "lacks"),
    [
        (Training(), []),
        (Training(attention="sdpa"), []),
        (Training(attention="flash_attention_2"), ["lacks flash_attn.", "Install it", "training.attention to null"]),
        (Training(lora=Lora(quantise="nf4")), ["lacks bitsandbytes", "quantise to none"]),
        (OFFLOADED, ["lacks deepspeed", "strategy to fsdp2"]),
    ],
)
def test_absent_packages_are_named_with_the_way_round(training: Training, lacks: list[str]) -> None:
    missing = training_faults(recipe_of(training=training), [training.dpo])
    assert len(missing) == bool(lacks)
    assert all(words in line for line in missing for words in lacks)


@pytest.mark.parametrize(("version", "fits"), [("0.31.0+cu130", True), ("0.32.0", False)])
def test_a_vllm_that_trl_does_not_take_is_refused(
    version: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm.py").touch()
    (tmp_path / f"vllm-{version}.dist-info").mkdir()
    (tmp_path / f"vllm-{version}.dist-info" / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    faults = training_faults(recipe_of(), [GRPO(generation="vllm_colocate")])
    assert (faults == []) is fits
    words = "this environment has vllm 0.32.0, and TRL takes <=0.31.0,>=0.22.0. Install preference-tuning[gpu]"
    assert all(words in line for line in faults)
    assert training_faults(recipe_of(), [GRPO()]) == []
