"""The base check, asked of tiny models of other families, and of one that was spoilt in one place."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from evals.base_check import check_base, check_once, of_level
from pipeline.core.storage import Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Lora
from pipeline.registry.base_findings import BaseFinding, last_check

pytestmark = pytest.mark.slow

Family = Callable[[str], Path]
ADAPTERS = Lora()


def told(folder: Path, level: str, lora: Lora = ADAPTERS) -> list[str]:
    return [f"{each.question}: {each.text}" for each in check_base(folder, lora) if each.level == level]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("llama31d", "chat template: it writes the date: prompts differ from day to day. Set base_model.chat.date."),
        ("neoxbase", "chat template: there is none. Set base_model.chat.template to a file with one."),
        ("noend", "chat template: it ends an answer with Ċ, at which generation does not stop"),
        ("r1llama", "tokenizer: LlamaTokenizer makes other tokens of 'Add 17 and 4.' than tokenizer.json. Set "),
        ("rowsfewer", "weights: [PAD] have no row in the embedding, which has 420, and [PAD] is in every batch."),
    ],
)
def test_what_would_go_wrong_is_an_error(family: Family, name: str, complaint: str) -> None:
    (error,) = told(family(name), "error")
    assert error.startswith(complaint)


def test_other_families_can_be_trained(family: Family) -> None:
    """Composites, a mixture of experts, Conv1D, no pad token, a template that takes no system message."""
    found = {name: check_base(family(name), Lora()) for name in ("gemma3c", "qwen3moe", "gpt2", "mistral", "thinkopen")}
    assert [(name, each) for name, of in found.items() for each in of if each.level == "error"] == []
    texts = {name: "; ".join(each.text for each in of) for name, of in found.items()}
    assert "gemma3 with gemma3_text, context 512 tokens" in texts["gemma3c"]
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in texts["gemma3c"], "not the vision tower's"
    assert "gpt2, context 256 tokens" in texts["gpt2"]
    assert "pads with </s>, stops at </s>" in texts["mistral"]
    assert "no place for a second user message in a row" in texts["mistral"]
    assert "it opens a thought" in texts["thinkopen"]
    assert all("all-linear reaches" in text for text in texts.values())


def test_tokens_without_rows_are_a_warning(family: Family) -> None:
    assert told(family("rowsfewer2"), "error") == []
    (warning,) = told(family("rowsfewer2"), "warning")
    assert warning.startswith("weights: </tool_call>, <tool_call> have no row in the embedding, which has 420")


def spoil_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def spoil_template(folder: Path, text: str) -> None:
    (folder / "chat_template.jinja").write_text(text)


def two_layouts(folder: Path) -> None:
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(folder / "model.safetensors"), "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


PARTS_ALONE = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
CHANNEL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}final: {% endif %}{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (two_layouts, "files: model.safetensors and model.safetensors.index.json stand in one folder"),
        (lambda f: spoil_config(f, auto_map={"AutoModel": "x.X"}), "architecture: config.json names code of its own"),
        (lambda f: spoil_config(f, model_type="t5"), "architecture: t5 is an encoder-decoder"),
        (
            lambda f: spoil_config(f, quantization_config={"quant_method": "fp8"}),
            "architecture: the weights are quantised",
        ),
        (without_a_tensor, "weights: model.layers.0.self_attn.q_proj.weight of Qwen"),
        (lambda f: spoil_template(f, "{{ raise_exception('no') }}"), "chat template: it does not render (no)"),
        (lambda f: spoil_template(f, "{{ messages|length }}"), "chat template: it leaves out the texts of messages"),
        (
            lambda f: spoil_template(f, PARTS_ALONE),
            "chat template: it leaves out the texts of messages",
        ),
        (lambda f: spoil_template(f, CHANNEL), "chat template: it writes 'final:' before an answer"),
    ],
)  # fmt: skip
def test_a_spoilt_folder_is_an_error(tmp_path: Path, spoil: Callable[[Path], None], complaint: str) -> None:
    folder = Path(shutil.copytree(MODEL_DIR, tmp_path / "model"))
    spoil(folder)
    assert [error[: len(complaint)] for error in told(folder, "error")][:1] == [complaint]


def test_what_the_class_does_not_use_is_a_warning(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODEL_DIR, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {**tensors, "mtp.head": tensors["model.norm.weight"].clone()}, folder / "model.safetensors", {"format": "pt"}
    )
    (folder / "model.gguf").write_text("")
    (folder / "tekken.json").write_text("{}")
    others, tekken, _, unused = told(folder, "warning")
    assert others.startswith("files: model.gguf: weights in another layout are not trained")
    assert tekken.startswith("files: tekken.json: vLLM takes it before tokenizer.json.")
    assert unused.startswith("weights: mtp.head are not of Qwen")


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nothing", "adapters: training.lora cannot be trained on it: Target modules nothing not found"),
        (".*(q_proj|lm_head)", "adapters: training.lora.target_modules reaches lm_head, which is tied"),
    ],
)
def test_target_modules_that_cannot_be_trained_are_an_error(target: str, complaint: str) -> None:
    (error,) = told(MODEL_DIR, "error", Lora(target_modules=target))
    assert error.startswith(complaint)


def test_the_embedded_model_has_one_thing_against_it() -> None:
    """Its vocabulary is one of words, without bytes."""
    (found,) = [each for each in check_base(MODEL_DIR, Lora()) if each.level != "ok"]
    lost = "'naïve café' comes back as 'nave caf': such answers are trained and graded so."
    assert found == BaseFinding("warning", "tokenizer", lost)


def test_a_model_is_asked_once_for_its_adapters(tmp_path: Path) -> None:
    folder, store = Path(shutil.copytree(MODEL_DIR, tmp_path / "model")), Store(tmp_path / "data")
    ref = model_ref(folder)
    assert last_check(store, ref) == ()
    found = check_once(store, ref, ADAPTERS)
    (folder / "tokenizer.json").unlink()  # what is on record is not asked again
    assert check_once(store, ref, ADAPTERS) == last_check(store, ref) == found
    assert of_level(check_once(store, ref, Lora(r=4)), "error") != []
    assert last_check(store, ref) == found, "a failed check is asked again"
