"""The course of one training process, whatever its method: resume, train, and end in one of the ways there are.

A run that is killed at any instant and run again ends with the same bits on CPU: the plan's rows are one epoch in their
order, checkpoints lie between batches of generation, and TRL restores the rest.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback, Trainer, TrainingArguments, set_seed

from pipeline.core import layout
from pipeline.core.storage import CheckpointRef
from pipeline.rewards.verifiers import Grader
from pipeline.training.callback import ProgressCallback, is_measured
from pipeline.training.checkpoints import Checkpointer, room
from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.distribution import assert_distribution
from pipeline.training.export import export, take_back
from pipeline.training.fresh_scores import FreshScores
from pipeline.training.goodput import account, interruptions
from pipeline.training.journal import TrainingJournal, read_journal
from pipeline.training.judge_scores import spending_in
from pipeline.training.plan import TrainingPlan
from pipeline.training.progress import emit
from pipeline.training.result import BLOCKED_WORDS, PREEMPTED, InvalidPlan, TrainingBlocked, TrainingResult
from pipeline.training.setup import PlanSetup, load_tokenizer
from pipeline.training.validation import Validator, read_held_out

NO_DISTRIBUTION = "probability tensor contains"
"""torch's words when it is to sample from numbers that overflowed: finite weights can do that."""


def run(
    setup: PlanSetup,
    arguments: TrainingArguments,
    check: Grader,
    scores: FreshScores | None = None,
    started_at: float | None = None,
    fence: Callable[[], None] = lambda: None,
) -> TrainingResult | None:
    """Train to the end from the newest complete checkpoint, export, and return the result (None on all ranks but 0).

    `started_at`: when this process did, in seconds since the epoch. `fence` raises for an attempt that was replaced;
    it is asked before anything is published. `scores`: of the plan's scorers. Exits with 143 after a SIGTERM, a
    checkpoint saved.
    """
    plan, folder = setup.plan, setup.folder
    first = PartialState().is_main_process
    journal = TrainingJournal(folder / layout.JOURNAL_FILE if first else None)
    checkpointer = _checkpointer(plan, folder, fence) if first else None
    resume = _from_first(checkpointer.newest() if checkpointer else None)
    journal.add("started", int(resume.name.removeprefix("step-")) if resume else 0, at=started_at)
    progress = ProgressCallback(plan, checkpointer, journal, setup.clock, _validator(plan, check, scores), folder)
    trainer = _build(setup, arguments, progress)
    if resume is not None:
        emit(f"resuming at {resume.name}")
    _train(trainer, progress, folder, resume)
    if progress.blocked:
        journal.add("ended", trainer.state.global_step, why="blocked")
        _close(checkpointer, plan.training.grace_s)  # what is in flight is taken out of the mirror again
        PartialState().wait_for_everyone()  # a rank that is gone first has the others killed
        raise TrainingBlocked(BLOCKED_WORDS)
    if progress.leaving:
        emit(f"pre-empted at step {trainer.state.global_step}, checkpoint saved")
        _close(checkpointer, plan.training.grace_s / 4)
        PartialState().wait_for_everyone()  # a rank that is gone first has the others killed
        sys.exit(PREEMPTED)
    fence()
    if progress.takes_back:
        checkpoint = take_back(plan, trainer, folder, checkpointer.best()) if checkpointer else None
    else:
        checkpoint = export(plan, trainer, folder)
    if checkpointer is None or checkpoint is None:
        return None
    _close(checkpointer, plan.training.grace_s)
    shutil.rmtree(folder / "trl", ignore_errors=True)
    journal.add("ended", checkpoint.step, why=_ending(progress))
    return _result(plan, folder, trainer, progress, checkpoint)


def _checkpointer(plan: TrainingPlan, folder: Path, fence: Callable[[], None]) -> Checkpointer:
    shutil.rmtree(folder / "trl", ignore_errors=True)  # the torn rest of a killed attempt
    attempt = 1 + sum(event.kind == "started" for event in read_journal(folder / layout.JOURNAL_FILE))
    origin = Origin(plan.digest(), plan.world_size, plan.iteration)
    return Checkpointer(folder / "checkpoints", origin, attempt, plan.training.checkpoints, emit, fence)


def _validator(plan: TrainingPlan, check: Grader, scores: FreshScores | None) -> Validator | None:
    if plan.held_out is None:
        return None
    rows, tokenizer = read_held_out(plan.held_out.uri), load_tokenizer(plan)
    return Validator(rows, check, plan.training.validation, tokenizer, scores.watching if scores else None)


def _build(setup: PlanSetup, arguments: TrainingArguments, progress: ProgressCallback) -> Trainer:
    """The method's trainer over the base model. Raises InvalidPlan for what does not go together."""
    set_seed(setup.plan.training.seed)  # the adapter's random start
    try:
        trainer = setup.plan.trained_by().trainer(setup, arguments, [progress])
        assert_distribution(trainer.accelerator, setup.plan)
        setup.check_rows(trainer)
        setup.keep_adapter_precision(trainer)
    except (TypeError, ValueError) as error:  # PEFT's, TRL's and our own words
        raise InvalidPlan(f"{type(error).__name__}: {error}") from error
    trainer.remove_callback(PrinterCallback)  # it prints every metric; ProgressCallback says what a person reads
    progress.attach(trainer)
    return trainer


def _train(trainer: Trainer, progress: ProgressCallback, folder: Path, resume: Path | None) -> None:
    try:
        with room(folder):
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    except RuntimeError as error:
        if NO_DISTRIBUTION not in str(error):
            raise
        progress.collapse("the policy's next-token distribution is not finite")


def _ending(progress: ProgressCallback) -> str:
    ends = {"stopped": progress.stopped, "braked": progress.braked, "solved": progress.solved}
    return next((why for why, ended in ends.items() if ended), "done")


def _result(
    plan: TrainingPlan, folder: Path, trainer: Trainer, progress: ProgressCallback, checkpoint: CheckpointRef
) -> TrainingResult:
    events = read_journal(folder / layout.JOURNAL_FILE)
    attempts = [event.step for event in events if event.kind == "started"]
    spent = spending_in(folder)
    history = [row for row in trainer.state.log_history if is_measured(row)]
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
        judge_tokens=spent.tokens,
        judge_usd=spent.usd,
        untrained_steps=trainer.state.max_steps - checkpoint.step if progress.solved or progress.braked else 0,
    )


def _from_first(folder: Path | None) -> Path | None:
    """The first rank's, on all ranks."""
    objects: list[Any] = [folder]
    broadcast_object_list(objects)
    return objects[0]


def _close(checkpointer: Checkpointer | None, within_s: float) -> None:
    if checkpointer is not None:
        checkpointer.drain(within_s)
        checkpointer.close()
