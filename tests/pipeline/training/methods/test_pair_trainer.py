"""Pairs as DPO trains them: the prompt that is served, and the same step whatever micro-batches it is split into."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from pipeline.demo import MODEL_DIR
from pipeline.models.rendering import rendered
from pipeline.recipe.methods import DPO
from pipeline.training.methods import trainer_of
from tests.fork_server import ForkServer, result_of
from tests.pipeline.training.methods.test_answers import QWEN3
from tests.pipeline.training.plans import folder, make_plan

pytestmark = pytest.mark.slow  # its imports take seconds


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
