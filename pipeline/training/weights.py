"""The weights that a training leaves: an adapter, and the model with it merged in, each published in one step, without
what says where it lies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.locations import record_of_iteration
from pipeline.core.storage import CheckpointRef, ModelRef, Store, digest_dir, publish_dir
from pipeline.training.checkpoints import MANIFEST
from pipeline.training.journal import emit
from pipeline.training.plan import TrainingPlan

if TYPE_CHECKING:
    from transformers import Trainer

NEEDLESS = ("README.md", "training_args.bin")
"""An empty model card with the base's path, ours being in the registry; the trainer's arguments, which are not read."""
CONFIG = "adapter_config.json"
BASE = "base_model_name_or_path"


def without_places(folder: Path) -> None:
    """Make what was saved in a folder below an iteration's, not yet published, independent of the data root. An adapter
    names a base model under the data root by the way to it from there."""
    for name in NEEDLESS:
        (folder / name).unlink(missing_ok=True)
    path = folder / CONFIG
    if not path.is_file():
        return
    config = json.loads(path.read_text())
    base, root = str(config.get(BASE)), record_of_iteration(path).root
    assert root is not None, "a record of an iteration always has a root"
    relative = Store(root).within(base)
    if relative != config.get(BASE):
        path.write_text(json.dumps({**config, BASE: relative}, indent=2, sort_keys=True))


def publish_weights(final: Path, write: Callable[[Path], object]) -> ModelRef:
    """What `write` leaves in a new folder, published as `final` in the place of an attempt's that was killed."""
    staging = final.with_name(f".{final.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    write(staging)
    without_places(staging)
    shutil.rmtree(final, ignore_errors=True)
    publish_dir(staging, final)
    return ModelRef(uri=str(final), digest=digest_dir(final))


def take_back(plan: TrainingPlan, trainer: Trainer, folder: Path, best: Path | None) -> CheckpointRef:
    """Publish the best checkpoint of a training that was stopped; without any, the base model is the best there is."""
    if best is None:
        emit("stopped before any checkpoint: the base model stands")
        return CheckpointRef(adapter=plan.base, model=plan.base, step=0)
    emit(f"the best checkpoint is {best.name}: it stays, and what came after it does not")

    def copy(to: Path) -> None:
        for file in [*best.glob("*.safetensors"), *best.glob("*.json")]:
            if file.name not in ("trainer_state.json", MANIFEST):
                shutil.copy2(file, to)

    return _publish(plan, trainer, folder, copy, int(best.name.removeprefix("step-")))


def export(plan: TrainingPlan, trainer: Trainer, folder: Path) -> CheckpointRef | None:
    """Publish what was trained. Every rank takes part, for a sharded model is gathered; the first has the result."""
    accelerator: Any = trainer.accelerator
    state = accelerator.get_state_dict(trainer.model_wrapped)
    if not accelerator.is_main_process:
        return None
    trained: Any = accelerator.unwrap_model(trainer.model)
    for name in getattr(trained, "all_tied_weights_keys", {}):
        state.pop(name, None)  # what FSDP2 and ZeRO gather has a second copy of an output that is the embedding
    return _publish(
        plan, trainer, folder, lambda to: trained.save_pretrained(to, state_dict=state), trainer.state.global_step
    )


def _publish(
    plan: TrainingPlan, trainer: Trainer, folder: Path, write: Callable[[Path], object], step: int
) -> CheckpointRef:
    """The adapter, and the model with it merged in: what is evaluated is what will be served. The merge is into a fresh
    copy of the base; a training without an adapter has the model in both."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, GenerationConfig

    theirs, tokenizer = Path(plan.base.uri, "generation_config.json"), trainer.processing_class

    def publish(name: str, write: Callable[[Path], object]) -> ModelRef:
        def whole(staging: Path) -> None:
            write(staging)
            tokenizer.save_pretrained(staging)  # type: ignore[union-attr]
            ours = staging / theirs.name
            if not theirs.is_file():
                ours.unlink(missing_ok=True)
            elif ours.is_file():  # the base's as it is: a training neither goes by what it says about sampling nor
                shutil.copyfile(theirs, ours)  # decides it

        return publish_weights(folder / name, whole)

    if plan.training.lora is None:
        model = publish("model", write)
        return CheckpointRef(adapter=model, model=model, step=step)
    adapter = publish("adapter", write)
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    base: Any = AutoModelForCausalLM.from_pretrained(plan.base.uri, dtype=dtype)
    base.generation_config = GenerationConfig()  # to write a file of contradictions raises; the base's own is copied
    merged: Any = PeftModel.from_pretrained(base, adapter.uri).merge_and_unload()
    return CheckpointRef(adapter=adapter, model=publish("model", merged.save_pretrained), step=step)
