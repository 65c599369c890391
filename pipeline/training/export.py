"""The weights that a training leaves: an adapter, and the model with it merged in, each published in one step."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig, Trainer
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from pipeline.core.storage import CheckpointRef, ModelRef
from pipeline.training.checkpoints import MANIFEST
from pipeline.training.journal import emit
from pipeline.training.plan import TrainingPlan
from pipeline.training.weights import publish_weights


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
    plan: TrainingPlan, trainer: Trainer, folder: Path, write: Callable[[Path], None], step: int
) -> CheckpointRef:
    """The adapter, and the model with it merged in: what is evaluated is what will be served. The merge is into a fresh
    copy of the base; a training without an adapter has the model in both."""

    def publish(name: str, write: Callable[[Path], None]) -> ModelRef:
        def whole(staging: Path) -> None:
            write(staging)
            trainer.processing_class.save_pretrained(staging)  # type: ignore[union-attr]
            _keep_generation_config(Path(plan.base.uri), staging)

        return publish_weights(folder / name, whole)

    if plan.training.lora is None:
        whole = publish("model", write)
        return CheckpointRef(adapter=whole, model=whole, step=step)
    adapter = publish("adapter", write)
    unset_hf_deepspeed_config()  # under ZeRO-3 the fresh base would be loaded in shards, which take no merge
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    base: Any = AutoModelForCausalLM.from_pretrained(plan.base.uri, dtype=dtype)
    base.generation_config = GenerationConfig()  # to write a file of contradictions raises; the base's own is copied
    merged: Any = PeftModel.from_pretrained(base, adapter.uri).merge_and_unload()
    return CheckpointRef(adapter=adapter, model=publish("model", merged.save_pretrained), step=step)


def _keep_generation_config(base: Path, folder: Path) -> None:
    """The base's file as it is, or none: a training neither goes by what it says about sampling nor decides it."""
    theirs, ours = base / "generation_config.json", folder / "generation_config.json"
    if ours.is_file() and theirs.is_file():
        shutil.copyfile(theirs, ours)
    elif not theirs.is_file():
        ours.unlink(missing_ok=True)
