"""Pairs as DPO trains them: the prompt that is served, and the same step whatever micro-batches it is split into."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.kills import result_of
from pipeline.demo import MODEL_DIR
from pipeline.models.rendering import rendered
from pipeline.models.tokenizer import load_tokenizer
from pipeline.recipe.methods import DPO
from pipeline.training.methods import trainer_of
from pipeline.training.methods.builder import count_positions_from_first_token
from tests.fork_server import ForkServer
from tests.pipeline.training.methods.test_answers import QWEN3
from tests.pipeline.training.plans import folder, make_plan

pytestmark = pytest.mark.slow


def base(root: Path, template: str) -> Path:
    """The embedded model with another chat template."""
    copied = shutil.copytree(MODEL_DIR, root / "base")
    (copied / "chat_template.jinja").write_text(template)
    return copied


def pairs(root: Path, template: str) -> tuple[Any, Any]:
    """The rows of a DPO over that model, and its tokenizer."""
    _, plan = make_plan(root, "dpo", base=base(root, template))
    builder = trainer_of(plan, root, reward=None)  # type: ignore[arg-type]
    return builder.dataset(builder.arguments()), builder.tokenizer


def test_pairs_have_the_prompt_that_is_served(tmp_path: Path) -> None:
    """Where the template renders it otherwise once an answer follows."""
    rows, tokenizer = pairs(tmp_path, QWEN3)
    for row in rows:
        prompt, chosen, rejected = (tokenizer.decode(row[f"{part}_ids"]) for part in ("prompt", "chosen", "rejected"))
        question = prompt.split("user\n")[1].split("<|im_end|>")[0]
        assert prompt == rendered(tokenizer, [{"role": "user", "content": question}]), "no thought in it"
        assert chosen != rejected and chosen.endswith("<|im_end|>") and rejected.endswith("<|im_end|>")
        assert "think" not in chosen


def test_pairs_of_a_template_without_an_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ends an answer with no token that generation stops at"):
        pairs(tmp_path, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")


def test_micro_batches_do_not_change_a_step(tmp_path: Path, fork_server: ForkServer) -> None:
    found: list[tuple[float, Any]] = []
    for size in (8, 2):
        method = DPO(steps=2, batch_size=8, learning_rate=3e-4, trainer_args={"per_device_train_batch_size": size})
        store, plan = make_plan(tmp_path / str(size), "dpo", dpo=method)
        path = folder(store, plan) / "plan.json"
        assert fork_server.attempt(path).code == 0, fork_server.said()
        weights = load_file(path.parent / "adapter" / "adapter_model.safetensors")
        found.append((result_of(path).metrics[0]["loss"], weights))
    (whole, adapter), (split, other) = found
    assert split == pytest.approx(whole, rel=1e-5)
    learned = [name for name in adapter if "lora_B" in name]  # from 0 on
    apart, norm = (
        sum(float((adapter[name] - other[name] * share).square().sum()) for name in learned) for share in (1, 0)
    )
    assert apart < 1e-8 * norm


@pytest.mark.parametrize("name", ["gpt2", "qwen35c"])
def test_padding_moves_no_answer(family: Callable[[str], Path], name: str) -> None:
    """Learned positions, and linear attention, whose state padding could reach."""
    folder = str(family(name))
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    count_positions_from_first_token(model)

    def scores(*texts: str) -> torch.Tensor:
        batch: Any = tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.no_grad():
            return model(**batch).logits[0].log_softmax(-1)

    alone = scores("Add 3 and 4.")
    padded = scores("Add 3 and 4.", "Add 3 and 4. Add 17 and 28. Add 5 and 6.")
    assert (padded[-len(alone) :] - alone).abs().max() < 1e-4
