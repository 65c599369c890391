"""The weights that a training leaves: an adapter, and the base with it merged in, each published in one step, without
what says where it lies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.locations import record_of_iteration
from pipeline.core.model_files import ADAPTER, adapter_config
from pipeline.core.storage import CheckpointRef, ModelRef, Store, digest_dir, publish_dir
from pipeline.models.export import PROMPTS, TOKENS, copy_tokenizer, export_policy
from pipeline.training.journal import emit
from pipeline.training.plan import TrainingPlan

if TYPE_CHECKING:
    from transformers import Trainer

NEEDLESS = ("README.md", "training_args.bin")
"""An empty model card with the base's path, ours being in the registry; the trainer's arguments, which are not read."""
ADAPTER_FILES = (ADAPTER, "adapter_model.safetensors")
BASE = "base_model_name_or_path"


def without_places(folder: Path) -> None:
    """Make what was saved in a folder below an iteration's, not yet published, independent of the data root. An adapter
    names a base model under the data root by the way to it from there."""
    for name in NEEDLESS:
        (folder / name).unlink(missing_ok=True)
    path = folder / ADAPTER
    if not path.is_file():
        return
    config = json.loads(path.read_bytes())
    base, root = str(config.get(BASE)), record_of_iteration(path).root
    assert root is not None, "a record of an iteration always has a root"
    relative = Store(root).within(base)
    if relative != config.get(BASE):
        path.write_text(json.dumps({**config, BASE: relative}, indent=2, sort_keys=True), encoding="utf-8")


def publish_weights(final: Path, write: Callable[[Path], object]) -> ModelRef:
    """What `write` leaves in a new folder, published as `final` in the place of an attempt's that was killed."""
    staging = final.with_name(f".{final.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    write(staging)
    shutil.rmtree(final, ignore_errors=True)
    publish_dir(staging, final)
    return ModelRef(uri=str(final), digest=digest_dir(final))


def take_back(plan: TrainingPlan, folder: Path, best: Path | None) -> CheckpointRef:
    """Publish the best checkpoint of a training that was stopped; without any, the base model is the best there is."""
    if best is None:
        emit("stopped before any checkpoint: the base model stands")
        return CheckpointRef(adapter=plan.base, model=plan.base, step=0)
    emit(f"the best checkpoint is {best.name}: it stays, and what came after it does not")
    step = int(best.name.removeprefix("step-"))
    if plan.training.lora is not None:
        return publish_adapter(plan, folder, step, lambda to: copy_adapter(best, to))
    from transformers import AutoModelForCausalLM

    return publish_state(plan, folder, step, AutoModelForCausalLM.from_pretrained(best).state_dict())


def export(plan: TrainingPlan, trainer: Trainer, folder: Path) -> CheckpointRef | None:
    """Publish what was trained. Every rank takes part, for a sharded model is gathered; the first has the result."""
    accelerator: Any = trainer.accelerator
    state = accelerator.get_state_dict(trainer.model_wrapped)
    if not accelerator.is_main_process:
        return None
    step, trained = trainer.state.global_step, accelerator.unwrap_model(trainer.model)
    if plan.training.lora is None:
        return publish_state(plan, folder, step, state)
    return publish_adapter(plan, folder, step, lambda to: trained.save_pretrained(to, state_dict=state))


def copy_adapter(source: Path, to: Path) -> None:
    for name in ADAPTER_FILES:
        shutil.copyfile(source / name, to / name)


def publish_adapter(plan: TrainingPlan, folder: Path, step: int, write: Callable[[Path], object]) -> CheckpointRef:
    """Publish the adapter that `write` leaves, and the base with it merged in: what is evaluated is what is served.
    Raises ValueError for an adapter that is not the base's, and as `export_policy` does."""

    def whole(staging: Path) -> None:
        write(staging)
        without_places(staging)
        copy_tokenizer(Path(plan.base.uri), staging)

    adapter = publish_weights(folder / "adapter", whole)
    model = _publish_model(plan, folder, lambda base: _with_adapter(base, Path(adapter.uri)))
    return CheckpointRef(adapter=adapter, model=model, step=step)


def publish_state(plan: TrainingPlan, folder: Path, step: int, state: Mapping[str, Any]) -> CheckpointRef:
    """Publish a model whose weights were all trained; `state` is its class's. The adapter is the model."""

    def change(base: Any) -> Any:
        base.load_state_dict(state)
        return base

    model = _publish_model(plan, folder, change)
    return CheckpointRef(adapter=model, model=model, step=step)


def _with_adapter(base: Any, folder: Path) -> Any:
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    adapter_config(folder)  # refuses what PEFT would import for it
    policy = PeftModel.from_pretrained(base, str(folder))
    with safe_open(folder / ADAPTER_FILES[1], framework="pt") as file:
        held = set(file.keys())
    if differ := sorted(held ^ get_peft_model_state_dict(policy).keys()):
        raise ValueError(
            f"The weights in {folder} are not of an adapter of the base model: {len(differ)} are missing or don't "
            f"belong, such as {differ[0]}. Train on the same base."
        )
    return policy


def _publish_model(plan: TrainingPlan, folder: Path, change: Callable[[Any], Any]) -> ModelRef:
    """Publish the base as `change` leaves it. Raises ValueError as `export_policy` does."""
    base, prompts = Path(plan.base.uri), _prompts(plan)
    return publish_weights(folder / "model", lambda to: export_policy(base, change, prompts, to))


def _prompts(plan: TrainingPlan) -> list[list[int]]:
    """The first tokens of a few of the plan's prompts."""
    import pyarrow.parquet as pq

    from pipeline.models.rendering import rendered
    from pipeline.models.tokenizer import load_tokenizer

    assert plan.data is not None, "only a plan that trains comes here"
    tokenizer = load_tokenizer(plan.base.uri)
    column = pq.read_table(plan.data.uri, columns=["prompt"])["prompt"].to_pylist()
    texts = dict.fromkeys(rendered(tokenizer, prompt) for prompt in column[: 8 * PROMPTS])
    return tokenizer([*texts][:PROMPTS], add_special_tokens=False, truncation=True, max_length=TOKENS)["input_ids"]
