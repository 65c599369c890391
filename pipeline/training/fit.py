"""What GRPO and DPO share inside the training process: loading, resuming, and the course of a run.

A run that is killed at any instant and run again ends with the same bits on CPU: the plan's rows are one epoch in their
order, checkpoints lie between batches of generation, and TRL restores the rest.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from peft import LoraConfig
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    set_seed,
)

from pipeline.recipe import Lora
from pipeline.rewards.verifiers import Grader
from pipeline.serving.decoding import stop_ids, use_stop_ids_only
from pipeline.storage import DatasetRef
from pipeline.training.callback import ProgressCallback
from pipeline.training.checkpoints import Checkpointer, room
from pipeline.training.distribution import assert_distribution, trainer_arguments
from pipeline.training.export import export, take_back
from pipeline.training.goodput import account, interruptions
from pipeline.training.journal import TrainingJournal, read_journal
from pipeline.training.plan import TrainingPlan
from pipeline.training.progress import emit
from pipeline.training.rates import Clock
from pipeline.training.result import PREEMPTED, InvalidPlan, TrainingResult
from pipeline.training.validation import Validator, read_held_out

Build = Callable[[list[TrainerCallback], Clock], Trainer]
"""Makes the trainer with the given callbacks; its steps' spans go to the clock."""
JOURNAL = "journal.jsonl"
NO_DISTRIBUTION = "probability tensor contains"
"""torch's words when it is to sample from numbers that overflowed: finite weights can do that."""


def common_args(plan: TrainingPlan, folder: Path) -> dict[str, Any]:
    """Arguments that both TRL configs take. One epoch over the plan's rows in their order: exact under resume."""
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(folder / "trl"),
        "num_train_epochs": 1,
        "lr_scheduler_type": "linear",
        "save_strategy": "no",  # ProgressCallback decides
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # it would show the sentinel the last good loss instead
        "report_to": "none",
        "disable_tqdm": True,
        "seed": plan.training.seed,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "gradient_checkpointing": on_gpu,
        "dataloader_pin_memory": on_gpu,
        **trainer_arguments(plan.world_size, on_gpu=on_gpu),
    }


def micro_batch(extra: dict[str, Any], examples_per_step: int, world_size: int) -> dict[str, int]:
    """Split a step's examples over the processes, and into micro-batches of `per_device_train_batch_size`, if given.

    Raises ValueError when they do not divide.
    """
    if examples_per_step % world_size:
        raise ValueError(
            f"A step's {examples_per_step} examples do not divide among {world_size} processes: change the recipe's "
            "prompts_per_step, num_generations or batch_size, or its compute section."
        )
    local = examples_per_step // world_size
    size = int(extra.get("per_device_train_batch_size", local))
    if size < 1 or local % size:
        raise ValueError(
            f"per_device_train_batch_size {size} does not divide the {local} examples of a process: use a divisor."
        )
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": local // size}


def lora_config(lora: Lora | None) -> LoraConfig | None:
    if lora is None:
        return None
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


def load_tokenizer(plan: TrainingPlan) -> Any:
    """The base model's tokenizer. Raises ValueError when it cannot train a chat model."""
    tokenizer = AutoTokenizer.from_pretrained(plan.base.uri, padding_side="left")
    for what, there in {"chat template": tokenizer.chat_template, "pad token": tokenizer.pad_token}.items():
        if not there:
            raise ValueError(f"The tokenizer in {plan.base.uri} has no {what}. Set one and save it beside the weights.")
    return tokenizer


def load_base(plan: TrainingPlan) -> tuple[Any, Any]:
    """The base model and its tokenizer: frozen bf16 under an adapter on a GPU, in 4 bits for QLoRA, else fp32."""
    lora = plan.training.lora
    half = torch.cuda.is_available() and lora is not None  # an update of 1e-6 is lost in a bf16 weight
    arguments: dict[str, Any] = {"dtype": torch.bfloat16 if half else torch.float32}
    if lora is not None and lora.quantise == "nf4":
        if not torch.cuda.is_available():
            raise ValueError("training.lora.quantise nf4 needs a GPU. Set it to none, or run where there is one.")
        from transformers import BitsAndBytesConfig

        arguments["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    model, tokenizer = _weights(plan.base.uri, arguments), load_tokenizer(plan)
    use_stop_ids_only(model, stop_ids(plan.base.uri, tokenizer), tokenizer)
    return model, tokenizer


def _weights(uri: str, arguments: dict[str, Any]) -> Any:
    """The model of a directory whose digest was verified: what is wrong with its files is wrong the next time too."""
    try:
        return AutoModelForCausalLM.from_pretrained(uri, **arguments)
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's word, not the loader's
            raise
        raise ValueError(
            f"The weights in {uri} cannot be loaded ({str(error).splitlines()[0]}). Restore that folder, or point "
            "base_model.uri to a complete one."
        ) from error


def read_rows(plan: TrainingPlan, columns: list[str]) -> Dataset:
    assert plan.data is not None, "only a plan that trains comes here"
    return Dataset(pq.read_table(plan.data.uri, columns=columns))  # in memory: no cache outside the data root


def context_of(plan: TrainingPlan) -> int | None:
    """Tokens that the base model can attend to; None where its configuration does not say."""
    return getattr(AutoConfig.from_pretrained(plan.base.uri), "max_position_embeddings", None)


def check_context(plan: TrainingPlan, data: DatasetRef, completion_tokens: int) -> None:
    """Raise ValueError when a prompt of `data` and its completion may be longer than the model's context."""
    context = context_of(plan)
    if context is None:
        return
    tokenizer = load_tokenizer(plan)
    prompts = {str(p): p for p in pq.read_table(data.uri, columns=["prompt"])["prompt"].to_pylist()}.values()
    rendered = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    longest = max(len(ids) for ids in tokenizer(rendered, add_special_tokens=False)["input_ids"])
    if longest + completion_tokens > context:
        raise ValueError(
            f"The longest prompt has {longest} tokens and max_completion_tokens is {completion_tokens}: together more "
            f"than the model's context of {context}. Lower max_completion_tokens or leave long prompts out."
        )


def check_rows(plan: TrainingPlan, trainer: Trainer) -> None:
    """Raise ValueError unless the trainer will see every row: TRL leaves pairs out whose prompt fills max_tokens."""
    assert plan.data is not None
    dataset: Any = trainer.train_dataset
    if len(dataset) < plan.data.rows:
        raise ValueError(
            f"TRL leaves {plan.data.rows - len(dataset)} of {plan.data.rows} pairs out: their prompts alone fill "
            "max_tokens. Raise training.dpo.max_tokens, or leave long prompts out."
        )


def check_held_out(plan: TrainingPlan) -> None:
    """`check_context` for the prompts of the validation."""
    if plan.held_out is not None:
        check_context(plan, plan.held_out, plan.training.validation.max_completion_tokens)


def run(
    plan: TrainingPlan,
    folder: Path,
    build: Build,
    check: Grader,
    started_at: float | None = None,
    fence: Callable[[], None] = lambda: None,
) -> TrainingResult | None:
    """Train to the end from the newest complete checkpoint, export, and return the result (None on all ranks but 0).

    `started_at`: when this process did, in seconds since the epoch. `fence` raises for an attempt that was replaced;
    it is asked before anything is published. Exits with 143 after a SIGTERM, a checkpoint saved.
    """
    training, first = plan.training, PartialState().is_main_process
    journal = TrainingJournal(folder / JOURNAL if first else None)
    keeper = resume = None
    if first:
        shutil.rmtree(folder / "trl", ignore_errors=True)  # the torn rest of a killed attempt
        attempt = 1 + sum(event.kind == "started" for event in read_journal(folder / JOURNAL))
        keeper = Checkpointer(
            folder / "checkpoints", plan.digest(), plan.world_size, attempt, training.checkpoints, emit, fence
        )
        resume = keeper.newest()
    resume = _from_first(resume)
    journal.add("started", int(resume.name.removeprefix("step-")) if resume else 0, at=started_at)
    validator = None
    if plan.held_out is not None:
        validator = Validator(read_held_out(plan.held_out.uri), check, training.validation, load_tokenizer(plan))
    clock = Clock(torch.cuda.synchronize if torch.cuda.is_available() else lambda: None)
    progress = ProgressCallback(plan, keeper, journal, clock, validator, folder / "completions")
    set_seed(training.seed)  # the adapter's random start
    try:
        trainer = build([progress], clock)
        assert_distribution(trainer.accelerator, plan)
        check_rows(plan, trainer)
    except (TypeError, ValueError) as error:  # PEFT's, TRL's and our own words on what does not go together
        raise InvalidPlan(f"{type(error).__name__}: {error}") from error
    trainer.remove_callback(PrinterCallback)  # it prints every metric; ProgressCallback says what a person reads
    progress.attach(trainer)
    if resume is not None:
        emit(f"resuming at {resume.name}")
    try:
        with room(folder):
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    except RuntimeError as error:
        if NO_DISTRIBUTION not in str(error):
            raise
        progress.collapse("the policy's next-token distribution is not finite")
    if progress.leaving:
        emit(f"pre-empted at step {trainer.state.global_step}, checkpoint saved")
        _close(keeper, training.grace_s / 4)
        PartialState().wait_for_everyone()  # a rank that is gone first has the others killed
        sys.exit(PREEMPTED)
    fence()
    if progress.stopped:
        checkpoint = take_back(plan, trainer, folder, keeper.best()) if keeper else None
    else:
        checkpoint = export(plan, trainer, folder)
    if keeper is None or checkpoint is None:
        return None
    _close(keeper, training.grace_s)
    shutil.rmtree(folder / "trl", ignore_errors=True)
    why = "stopped" if progress.stopped else "solved" if progress.solved else "done"
    journal.add("ended", checkpoint.step, why=why)
    events = read_journal(folder / JOURNAL)
    attempts = [event.step for event in events if event.kind == "started"]
    history = [row for row in trainer.state.log_history if "seconds/step" in row or "held_out/length" in row]
    return TrainingResult(
        iteration=plan.iteration,
        plan_digest=plan.digest(),
        checkpoint=checkpoint,
        metrics=tuple({name: float(value) for name, value in row.items()} for row in history),
        seconds=sum(event.seconds.get("step", 0.0) for event in events if event.kind == "step"),
        attempts=len(attempts),
        resumed_from=tuple(step for step in attempts if step > 0),
        health=progress.health,
        goodput=account(events),
        preemptions=interruptions(events),
        engine="trl",
        untrained_steps=trainer.state.max_steps - checkpoint.step if progress.solved else 0,
    )


def _from_first(folder: Path | None) -> Path | None:
    """What the first rank found, told to all."""
    objects: list[Any] = [folder]
    broadcast_object_list(objects)
    return objects[0]


def _close(keeper: Checkpointer | None, within_s: float) -> None:
    if keeper is not None:
        keeper.drain(within_s)
        keeper.close()
