"""One training process: all of a training, or one rank of it. Killed at any instant and run again it ends with the same
bits on CPU: one epoch in the plan's order, and checkpoints between batches of generation."""

import logging as python_logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
import transformers  # its trainer comes after pipeline.serving.loaded
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from jinja2 import TemplateError
from transformers.utils import logging

import pipeline.serving.loaded  # noqa: F401  # pyright: ignore[reportUnusedImport]  (keeps scikit-learn out)
from pipeline.core import layout
from pipeline.models.rendering import chat_tokenizer
from pipeline.models.tokenizer import stop_ids
from pipeline.rewards.custom import custom_scorer
from pipeline.rewards.verifiers import Grader
from pipeline.training.account import result_of, write_result
from pipeline.training.callback import ProgressCallback, is_measured
from pipeline.training.checkpoints.checkpointer import Checkpointer
from pipeline.training.checkpoints.claims import only_writer
from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.distribution import assert_distribution, environment
from pipeline.training.journal import TrainingJournal, emit, read_journal
from pipeline.training.launch import missing_packages
from pipeline.training.methods import MethodTrainer, trainer_of
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import BLOCKED_WORDS, PREEMPTED, InvalidPlan, TrainingBlocked, TrainingResult
from pipeline.training.reward_function import RewardFunction
from pipeline.training.schedule import metadata_by_prompt
from pipeline.training.scorers import open_scores, spending
from pipeline.training.validation import Validator, read_held_out
from pipeline.training.weights import export, take_back

NO_DISTRIBUTION = "probability tensor contains"
"""torch's words when it is to sample from numbers that overflowed: finite weights can do that."""


def work(plan: TrainingPlan, folder: Path, started_at: float, attempt: int = 0) -> None:
    """Train in `folder` and write `result.json` there (rank 0). `started_at`: when this process did, in seconds since
    the epoch; `attempt`: of a launcher that numbers them. Raises InvalidPlan, TrainingBlocked, and Superseded once a
    later start has claimed the folder; exits with 143 when it is pre-empted."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    python_logging.getLogger("trl").setLevel(python_logging.ERROR)  # its warnings quote prompts and completions
    torch.set_num_threads(plan.training.threads)
    method = plan.trained_by()
    with ExitStack() as stack:
        writes = os.environ.get("RANK", "0") == "0"
        fence = stack.enter_context(only_writer(folder, attempt)).check if writes else lambda: None
        check = stack.enter_context(closing(Grader(plan.rewards.verifier)))
        try:
            if missing := missing_packages(plan.training, [method]):
                raise ValueError(" ".join(missing))
            second = plan.training.lora is None and method.keeps_reference
            strategy = environment(plan.training.distribution, on_gpu=torch.cuda.is_available(), second_model=second)
            os.environ.update(strategy)
            tokenizer = chat_tokenizer(plan.base.uri)
            checked = method.group_size is not None and plan.scorers is None
            custom = custom_scorer("verified", plan.rewards) if checked else None
            if custom is not None:
                custom.start()
                stack.callback(custom.close)
            scores = stack.enter_context(open_scores(plan, folder)) if plan.scorers is not None else None
            stops = stop_ids(plan.base.uri, tokenizer)
            metadata = metadata_by_prompt(plan.data) if custom is not None else {}
            reward = RewardFunction(plan.rewards, check, custom, scores, stops, metadata)
            builder = trainer_of(plan, folder, reward)
            arguments = builder.arguments()
            builder.check_prompts()
        except (TypeError, ValueError, OSError, TemplateError) as error:  # settings, tokenizer, template, data
            raise InvalidPlan(f"{type(error).__name__}: {error}") from error
        emit(f"{method.title} of {plan.base.uri}, {method.steps} steps, {plan.world_size} process(es)")
        validator = None
        if plan.held_out is not None:
            rows, watching = read_held_out(plan.held_out.uri), scores.watching if scores else None
            validator = Validator(rows, check, plan.training.validation, tokenizer, stops, watching)
        result = _train(builder, arguments, validator, started_at, fence)
        if result is not None:
            fence()
            write_result(folder, result)


def _train(
    builder: MethodTrainer,
    arguments: transformers.TrainingArguments,
    validator: Validator | None,
    started_at: float,
    fence: Callable[[], None],
) -> TrainingResult | None:
    """Train to the end from the newest complete checkpoint, export, and return the result (None on all ranks but 0).
    `fence` raises for an attempt that was replaced; it is asked before anything is published."""
    plan, folder, grace_s = builder.plan, builder.folder, builder.plan.training.grace_s
    first, journal_file = PartialState().is_main_process, builder.folder / layout.JOURNAL_FILE
    journal, keeper = TrainingJournal(journal_file if first else None), None
    if first:
        shutil.rmtree(folder / "trl", ignore_errors=True)  # the torn rest of a killed attempt
        origin = Origin(plan.digest(), plan.world_size, plan.iteration)
        keeper = Checkpointer(folder / "checkpoints", origin, plan.training.checkpoints, emit, fence)
    objects: list[Any] = [keeper.newest() if keeper else None]
    broadcast_object_list(objects)  # the first rank's, to all
    resume: Path | None = objects[0]
    journal.add("started", int(resume.name.removeprefix("step-")) if resume else 0, at=started_at)
    progress = ProgressCallback(builder, keeper, journal, validator)
    transformers.set_seed(plan.training.seed)  # the adapter's random start
    try:
        trainer = builder.trainer(arguments, [progress])
        assert_distribution(trainer.accelerator, plan)
    except (TypeError, ValueError) as error:  # PEFT's, TRL's and our own words
        raise InvalidPlan(f"{type(error).__name__}: {error}") from error
    trainer.remove_callback(transformers.PrinterCallback)  # ProgressCallback says what a person reads
    progress.attach(trainer)
    if resume is not None:
        emit(f"resuming at {resume.name}")
    try:
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    except RuntimeError as error:
        if NO_DISTRIBUTION not in str(error):
            raise
        progress.collapse("the policy's next-token distribution is not finite")
    if progress.blocked or progress.leaving:
        if progress.blocked:
            journal.add("ended", trainer.state.global_step)
        else:
            emit(f"pre-empted at step {trainer.state.global_step}, checkpoint saved")
        if keeper is not None:  # of a blocked training what is in flight is taken out of the mirror again
            keeper.close(grace_s if progress.blocked else grace_s / 4)
        PartialState().wait_for_everyone()  # a rank that is gone first has the others killed
        if progress.blocked:
            raise TrainingBlocked(BLOCKED_WORDS)
        sys.exit(PREEMPTED)
    fence()
    try:
        if progress.takes_back:
            exported = take_back(plan, folder, keeper.best()) if keeper else None
        else:
            exported = export(plan, trainer, folder)
    except ValueError as error:
        raise InvalidPlan(str(error)) from error
    if exported is None or keeper is None:
        return None
    keeper.close(grace_s)
    shutil.rmtree(folder / "trl", ignore_errors=True)
    step = exported.step
    journal.add("ended", step)
    history = [row for row in trainer.state.log_history if is_measured(row)]
    judged = spending(folder)
    return result_of(
        plan,
        read_journal(journal_file),
        exported,
        metrics=tuple({name: float(value) for name, value in row.items()} for row in history),
        health=progress.watch.health,
        judge_tokens=judged.tokens,
        judge_usd=judged.usd,
        untrained_steps=trainer.state.max_steps - step if progress.solved or progress.watch.braked else 0,
    )
