"""What GRPO and DPO share inside the training process: loading, resuming, live progress, and the export at the end.

Subclasses nothing of TRL: a callback commits checkpoints and speaks, arguments do the rest. A run that is killed at
any instant and run again ends with the same bits on CPU.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from pipeline.storage import CheckpointRef, ModelRef, digest_dir, publish_dir
from pipeline.training.checkpoints import commit, newest_complete
from pipeline.training.plan import TrainingPlan, TrainingResult

PREEMPTED = 143


def say(message: str) -> None:
    """One progress line for people; the launcher passes on what starts like this."""
    print(f"training: {message}", flush=True)


def common_args(plan: TrainingPlan, folder: Path) -> dict[str, Any]:
    """Arguments that both TRL configs take. One epoch over the plan's rows in their order: exact under resume."""
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(folder / "staging"),
        "num_train_epochs": 1,
        "lr_scheduler_type": "linear",
        "save_strategy": "steps",
        "save_steps": plan.checkpoint_every_steps,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": plan.seed,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "gradient_checkpointing": on_gpu,
        "dataloader_pin_memory": on_gpu,
    }


def micro_batch(extra: dict[str, Any], examples_per_step: int) -> dict[str, int]:
    """Split a step's examples into micro-batches of `trainer_args.per_device_train_batch_size`, if that is given."""
    size = int(extra.get("per_device_train_batch_size", examples_per_step))
    if examples_per_step % size:
        raise ValueError(
            f"per_device_train_batch_size {size} does not divide a step's {examples_per_step} examples: use a divisor."
        )
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": examples_per_step // size}


def lora_config(plan: TrainingPlan) -> LoraConfig:
    return LoraConfig(
        r=plan.lora.r, lora_alpha=plan.lora.alpha, target_modules=plan.lora.target_modules, task_type="CAUSAL_LM"
    )


def load_tokenizer(plan: TrainingPlan) -> Any:
    """The base model's tokenizer. Raises ValueError when it cannot train a chat model."""
    tokenizer = AutoTokenizer.from_pretrained(plan.base.uri, padding_side="left")
    for what, there in {"chat template": tokenizer.chat_template, "pad token": tokenizer.pad_token}.items():
        if not there:
            raise ValueError(f"The tokenizer in {plan.base.uri} has no {what}. Set one and save it beside the weights.")
    return tokenizer


def load_base(plan: TrainingPlan) -> tuple[Any, Any]:
    """The base model and its tokenizer: bf16 on a GPU, fp32 on CPU."""
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return AutoModelForCausalLM.from_pretrained(plan.base.uri, dtype=dtype), load_tokenizer(plan)


def read_rows(plan: TrainingPlan, columns: list[str]) -> Dataset:
    assert plan.data is not None, "only a plan that trains comes here"
    return Dataset(pq.read_table(plan.data.uri, columns=columns))  # in memory: no cache outside the data root


def run(plan: TrainingPlan, folder: Path, build: Callable[[list[TrainerCallback]], Trainer]) -> TrainingResult:
    """Train to the end from the newest complete checkpoint, export, and return the result.

    `build` makes the trainer with the given callbacks. Exits with 143 after a SIGTERM, with a checkpoint saved.
    """
    checkpoints, staging, digest = folder / "checkpoints", folder / "staging", plan.digest()
    shutil.rmtree(staging, ignore_errors=True)  # the torn rest of a killed attempt
    resume = newest_complete(checkpoints, digest, warn=say)
    attempts = _count_attempt(folder, resume)
    progress = Progress(checkpoints, digest)
    trainer = build([progress])
    trainer.remove_callback(PrinterCallback)  # it prints every metric; Progress says what a person reads
    if resume is not None:
        say(f"resuming at {resume.name}")
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    if progress.preempted:
        say(f"pre-empted at step {trainer.state.global_step}, checkpoint saved")
        sys.exit(PREEMPTED)
    shutil.rmtree(staging, ignore_errors=True)
    history = [row for row in trainer.state.log_history if "step_seconds" in row]
    return TrainingResult(
        iteration=plan.iteration,
        plan_digest=digest,
        checkpoint=_export(trainer, folder),
        metrics=tuple({name: float(value) for name, value in row.items()} for row in history),
        seconds=sum(row["step_seconds"] for row in history),
        attempts=len(attempts),
        resumed_from=tuple(step for step in attempts if step > 0),
    )


class Progress(TrainerCallback):
    """Commits what the Trainer saves, reports each step, and turns SIGTERM into a saved stop at a step's end."""

    def __init__(self, checkpoints: Path, plan_digest: str) -> None:
        self.preempted = False
        self._checkpoints, self._digest = checkpoints, plan_digest
        self._last = time.monotonic()
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: Any) -> None:
        self.preempted = True

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._last = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.preempted and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if logs is None or "loss" not in logs:
            return
        now = time.monotonic()
        state.log_history[-1]["step_seconds"] = now - self._last
        self._last = now
        shown = {"reward": "reward", "accuracy": "accuracy", "rewards/accuracies": "pairs ranked right", "loss": "loss"}
        parts = [f"{name} {float(logs[key]):.3f}" for key, name in shown.items() if key in logs]
        say(f"step {state.global_step}/{state.max_steps}  " + "  ".join(parts))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        assert args.output_dir is not None
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        commit(saved, self._checkpoints, self._digest, state.global_step)


def _count_attempt(folder: Path, resume: Path | None) -> list[int]:
    """Add this attempt to the ledger; returns the step at which each attempt began."""
    ledger = folder / "attempts.jsonl"
    step = int(resume.name.removeprefix("step-")) if resume else 0
    with ledger.open("a") as stream:
        stream.write(json.dumps({"resumed_from": step}) + "\n")
    return [json.loads(line)["resumed_from"] for line in ledger.read_text().splitlines()]


def _export(trainer: Trainer, folder: Path) -> CheckpointRef:
    """Publish the adapter, and the model with it merged in: what is evaluated is what will be served."""
    peft_model: Any = trainer.accelerator.unwrap_model(trainer.model)
    step = trainer.state.global_step

    def publish(name: str, model: Any) -> ModelRef:
        final, staging = folder / name, folder / f".{name}"
        shutil.rmtree(staging, ignore_errors=True)
        model.save_pretrained(staging)
        trainer.processing_class.save_pretrained(staging)  # type: ignore[union-attr]
        (staging / "README.md").unlink(missing_ok=True)  # an empty model card; ours is in the registry
        shutil.rmtree(final, ignore_errors=True)  # an attempt that was killed before its result
        publish_dir(staging, final)
        return ModelRef(uri=str(final), digest=digest_dir(final))

    adapter = publish("adapter", peft_model)
    return CheckpointRef(adapter=adapter, model=publish("model", peft_model.merge_and_unload()), step=step)
