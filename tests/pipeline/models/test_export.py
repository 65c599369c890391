"""An export is its base with other weights: files, tensors and the function, for other people's models."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.model_files import header, model_files, weight_files
from pipeline.models import export
from pipeline.models.export import (
    copied_files,
    copy_tokenizer,
    export_policy,
    load_model,
    write_model,
)
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow

PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12, 13]]
ADAPTED = {"gpt2": "c_attn", "neoxchat": "query_key_value", "phi3": "qkv_proj", "gemma3c": r".*language_model.*q_proj"}
FAMILIES = ("llama3", "qwen2f16", "gemma3c", "qwen35c", "qwen3moe", "gpt2", "neoxchat", "phi3", "gemma2")


def adapted(model: Any, targets: Any = "q_proj") -> Any:
    """The model with an adapter that changes what it says."""
    from peft import LoraConfig, get_peft_model

    targets = targets if "*" in targets else [targets]
    policy = get_peft_model(model, LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"))
    for name, weight in policy.named_parameters():
        if "lora_" in name:
            weight.data.normal_(std=0.2)
    return policy


def scaled(by: float) -> Callable[[Any], Any]:
    """All weights are trained."""

    def change(model: Any) -> Any:
        for weight in model.parameters():
            weight.data.mul_(by)
        return model

    return change


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: value for path in weight_files(folder) for name, value in load_file(path).items()}


def with_tensors(base: Path, to: Path, held: dict[str, Any]) -> Path:
    """A copy of the base with these weights."""
    from safetensors.torch import save_file

    shutil.copytree(base, to)
    save_file(
        {name: value.clone() for name, value in held.items()}, to / "model.safetensors", metadata={"format": "pt"}
    )
    return to


def exported(base: Path, change: Callable[[Any], Any], to: Path) -> set[str]:
    """Export the base as `change` leaves it; returns the tensors whose values are others."""
    import torch

    to.mkdir()
    export_policy(base, change, PROMPTS, to)
    assert model_files(to) == model_files(base)
    for path in weight_files(base):
        assert header(to / path.name) == header(path)
    assert all((to / name).read_bytes() == (base / name).read_bytes() for name in copied_files(base))
    before, after = tensors(base), tensors(to)
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


@pytest.mark.parametrize("name", one_and_variants(FAMILIES))
def test_adapter_changes_the_tensors_it_targets(name: str, family: Callable[[str], Path], tmp_path: Path) -> None:
    base, targets = family(name), ADAPTED.get(name, "q_proj")
    changed = exported(base, lambda model: adapted(model, targets), tmp_path / "model")
    ends = f"{targets.rpartition('*')[2]}.weight"
    wanted = {each for each in tensors(base) if each.endswith(ends) and "vision" not in each and "visual" not in each}
    assert changed == wanted and changed


@pytest.mark.parametrize("name", one_and_variants(FAMILIES, "qwen35c"))
def test_full_training_changes_what_the_class_knows(name: str, family: Callable[[str], Path], tmp_path: Path) -> None:
    base = family(name)
    changed, held = exported(base, scaled(1.01), tmp_path / "model"), tensors(base)
    assert set(held) - changed == {each for each in held if "visual" in each or not held[each].any()}
    assert any("visual" in each for each in held) == (name == "qwen35c")


def test_tensors_outside_the_class_survive(family: Callable[[str], Path], tmp_path: Path) -> None:
    held = tensors(family("qwen2"))
    drafting = {f"mtp.{name.removeprefix('model.')}": value * 2 for name, value in held.items() if "layers.0" in name}
    base = with_tensors(family("qwen2"), tmp_path / "base", {**held, **drafting})
    assert not exported(base, scaled(1.01), tmp_path / "model") & drafting.keys()


@pytest.mark.parametrize("kept", [("model.embed_tokens.weight", "lm_head.weight"), ("lm_head.weight",)])
def test_tied_weights_change_under_each_name(
    kept: tuple[str, ...], family: Callable[[str], Path], tmp_path: Path
) -> None:
    held = tensors(family("qwen2"))
    tied = held.pop("model.embed_tokens.weight")
    base = with_tensors(family("qwen2"), tmp_path / "base", {**held, **dict.fromkeys(kept, tied)})
    assert exported(base, scaled(1.01), tmp_path / "model") >= set(kept)


def test_names_without_the_classes_prefix_are_kept(family: Callable[[str], Path], tmp_path: Path) -> None:
    short = {name.removeprefix("transformer."): value for name, value in tensors(family("gpt2")).items()}
    base = with_tensors(family("gpt2"), tmp_path / "base", short)
    changed = exported(base, lambda model: adapted(model, "c_attn"), tmp_path / "model")
    assert changed == {"h.0.attn.c_attn.weight", "h.1.attn.c_attn.weight"}


def test_weights_of_other_engines_are_left_behind(family: Callable[[str], Path], tmp_path: Path) -> None:
    base = Path(shutil.copytree(family("llama3"), tmp_path / "base"))
    for name in (
        "consolidated.safetensors",
        "pytorch_model.bin",
        "m.gguf",
        ".DS_Store",
        "README.md",
        "onnx/config.json",
    ):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("other")
    (base / "LICENSE").write_text("terms")
    (tmp_path / "model").mkdir()
    export_policy(base, adapted, PROMPTS, tmp_path / "model")
    assert model_files(tmp_path / "model") == sorted([*model_files(family("llama3")), "LICENSE"])
    (tmp_path / "adapter").mkdir()
    copy_tokenizer(base, tmp_path / "adapter")
    assert {"tokenizer.json", "tokenizer_config.json", "LICENSE"} <= {*model_files(tmp_path / "adapter")}
    assert not {"config.json", "generation_config.json"} & {*model_files(tmp_path / "adapter")}


def test_a_policy_that_no_export_can_be_is_refused(family: Callable[[str], Path], tmp_path: Path) -> None:
    def shared(model: Any) -> Any:
        """Each layer's adapter would be merged into the one projection that they share."""
        first, second = model.model.layers
        second.self_attn.q_proj = first.self_attn.q_proj
        return adapted(model)

    for change, complaint in (
        (lambda model: adapted(model, "lm_head"), r"differs by .* nats|no place in the weights"),
        (shared, r"differs by .* nats"),
        (scaled(1e6), "is not finite in torch.float16"),
    ):
        to = tmp_path / "model"
        to.mkdir()
        with pytest.raises(ValueError, match=complaint):
            export_policy(family("qwen2f16"), change, PROMPTS, to)
        shutil.rmtree(to)


def test_a_tensor_that_the_file_lacks_is_named(family: Callable[[str], Path], tmp_path: Path) -> None:
    held = tensors(family("qwen2"))
    del held["model.norm.weight"]
    with pytest.raises(ValueError, match=r"1 tensors of the model have no place .* such as model\.norm\.weight"):
        load_model(with_tensors(family("qwen2"), tmp_path / "base", held))


def test_an_export_that_was_written_wrongly_is_refused(
    family: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, to = family("qwen35c"), tmp_path / "model"
    to.mkdir()
    monkeypatch.setattr(export, "write_model", lambda base, state, to: write_model(base, {}, to))
    with pytest.raises(ValueError, match=r"The exported model against the merged one: .* differs by"):
        export_policy(base, scaled(1.2), PROMPTS, to)
