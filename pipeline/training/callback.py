"""Around each step of a training: report, time, validate, watch, save, end. With several ranks, all agree after each
step and end at the same one."""

import json
import math
import os
import resource
import signal
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pipeline.core import layout
from pipeline.training.checkpoints.checkpointer import Checkpointer, SaveSchedule
from pipeline.training.journal import MetricsLog, TrainingJournal, emit, step_line
from pipeline.training.methods import MethodTrainer
from pipeline.training.rates import Shape, TokenCounter, shape_of, step_rates
from pipeline.training.result import PREEMPTED, HealthFinding
from pipeline.training.sentinel import HealthMonitor
from pipeline.training.validation import Validator
from pipeline.training.weights import without_places

TABLE_EVERY, TABLE_ROWS = 10, 16
"""Steps between tables of completions, and their rows."""
BACKSTOP = 0.9
"""Share of the grace after SIGTERM after which the process ends, saved or not."""


class ProgressCallback(TrainerCallback):
    """Commits what the Trainer saves, reports each step, watches health, and turns SIGTERM into a saved stop."""

    def __init__(
        self, builder: MethodTrainer, keeper: Checkpointer | None, journal: TrainingJournal, validator: Validator | None
    ) -> None:
        """`keeper`: of the first rank alone."""
        plan, kept = builder.plan, builder.plan.training.checkpoints.keep_best > 0
        self._builder, self._plan, self._clock, self._folder = builder, plan, builder.clock, builder.folder
        self._keeper, self._journal, self._validator = keeper, journal, validator
        self._metrics = MetricsLog(builder.folder / layout.METRICS_FILE if keeper is not None else None)
        self._cadence = SaveSchedule(plan.training.checkpoints)
        self._block = plan.trained_by().updates_per_batch
        self.watch = HealthMonitor(plan.training.sentinel, plan.answer_kl_stop, plan.judged_by, kept, emit)
        self.leaving = self.stopped = self.solved = False
        """How the training ends, agreed between the ranks: pre-empted with a checkpoint, stopped by the sentinel, or
        early, because it has nothing left to learn or was best before."""
        self.blocked = False
        """An erasure took data of the training away: nothing of it is exported."""
        self._trainer: Any = None
        self._count: TokenCounter | None = None
        self._shape: Shape | None = None
        self._peak_tflops = plan.peak_tflops if torch.cuda.is_available() else None
        self._step_begun = self._saved = self._logged = time.monotonic()
        self._at = 0
        self._spent: dict[str, float] = {}
        self._held_out: dict[str, float] = {}
        self._scored: tuple[int, float | None] = (-1, None)
        self._terminated = self._loaded = False
        signal.signal(signal.SIGTERM, self._terminate)

    def attach(self, trainer: Trainer) -> None:
        """The trainer whose callback this is: validation and agreement between the ranks go through it."""
        self._trainer, self._count = trainer, self._builder.token_counter(trainer)
        self._shape = shape_of(trainer.accelerator.unwrap_model(trainer.model))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._at = state.global_step
        self._journal.add("ready", self._at)
        if self._validator is not None and self._at == 0:  # the base model, which all that follows is compared with
            self._validate(0)
            state.log_history.append({"step": 0, **self._held_out})
            self._held_out = {}
        for row in state.log_history:
            if is_measured(row):
                self._metrics.add(row)
            self.watch.add(row)
        self._saved, self._loaded = time.monotonic(), True

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._keeper is not None:
            self._keeper.fence()
        self._clock.settle()
        self._clock.take()
        self._step_begun = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._clock.settle()
        step, keeper = state.global_step, self._keeper
        self._at = step
        whole = time.monotonic() - self._step_begun
        spent = self._clock.take()
        self._spent = {**spent, "update": max(0.0, whole - sum(spent.values())), "step": whole}
        self._journal.add("step", step, self._spent)
        last = step >= state.max_steps
        if self._agree((self._folder / layout.BLOCKED_FILE).exists() or (keeper is not None and keeper.is_erased))[0]:
            self.blocked = control.should_training_stop = True
            control.should_save = False
            emit(f"blocked by an erasure after step {step}")
            return
        if step % self._block and not last:
            return
        if self._agree(not finite(self._trainer.model))[0]:
            broken = HealthFinding(verdict="STOP", rule="not_finite", step=step, reason="a weight is not finite")
            self.watch.keep(broken)
            return self._stop(control)
        every = self._plan.training.validation.every_steps
        validated = self._validator is not None and (last or step // every > (step - self._block) // every)
        if validated:
            self._validate(step)
        due = self._keeper is not None and self._cadence.due(step, time.monotonic() - self._saved, self._block)
        asked, due = self._agree(self._terminated, due)
        control.should_save = not last and (due or (validated and self._plan.training.checkpoints.keep_best > 0))
        if asked and not self._terminated:
            self._journal.add("stopping", step, why="SIGTERM")  # another rank's: one node goes, all leave
        if asked and not last:  # the last step has only the export before it
            self.leaving = control.should_save = control.should_training_stop = True

    def _validate(self, step: int) -> None:
        """Ask the held-out prompts; the answers go into the step's row."""
        assert self._validator is not None
        begun = time.monotonic()
        self._held_out = self._validator(self._trainer)
        self._scored = step, self._held_out.get(self._plan.judged_by)
        self._journal.add("validated", step, {"validation": time.monotonic() - begun})

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        if "loss" not in (more.get("logs") or {}):
            return
        row: dict[str, Any] = state.log_history[-1]
        row |= {name: math.nan for name, value in row.items() if value is None}  # TRL's mean of no value
        row |= {f"seconds/{name}": seconds for name, seconds in self._spent.items()} | self._held_out
        assert self._count is not None and self._shape is not None, "`attach` comes first"
        if (tokens := self._count(row)) is not None:
            row |= step_rates(tokens, self._spent, self._shape, self._plan.world_size, self._peak_tflops)
        row |= memory()
        validated, self._held_out = bool(self._held_out), {}
        self._metrics.add(row)
        before, findings = self.watch.health, self.watch.add(row)
        if any(finding.verdict == "STOP" for finding in findings):
            self._stop(control)
        solved = any(finding.rule == "solved" for finding in findings)
        if validated and self._agree(solved or self.watch.braked)[0]:
            self._end_early(state, control)
        if state.global_step % TABLE_EVERY in (0, 1) or self.watch.health is not before:
            write_completions(self._trainer, self._folder / "completions", state.global_step)
        emit(step_line(state.global_step, state.max_steps, row))
        self._logged = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        assert args.output_dir is not None
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        accelerator = self._trainer.accelerator
        accelerator.wait_for_everyone()  # every rank's random state is in the folder
        if self._keeper is not None:
            step, score = self._scored
            without_places(saved)
            self._keeper.commit(saved, state.global_step, score if step == state.global_step else None)
        accelerator.wait_for_everyone()
        now = time.monotonic()
        seconds = now - self._logged
        self._cadence.saved(seconds)
        self._saved = now
        self._journal.add("saved", state.global_step, {"save": seconds})

    def _terminate(self, *_: Any) -> None:
        """SIGTERM: a saved stop (143) at the end of the batch. Where that takes longer than the grace, and before the
        training has begun, the process ends, and the last checkpoint stands."""
        self._terminated = True
        self._journal.add("stopping", self._at, why="SIGTERM")
        if not self._loaded:
            os._exit(PREEMPTED)
        backstop = threading.Timer(BACKSTOP * self._plan.training.grace_s, os._exit, (PREEMPTED,))
        backstop.daemon = True
        backstop.start()

    def _stop(self, control: TrainerControl) -> None:
        """End the training for good: it is not resumed."""
        self.stopped = control.should_training_stop = True
        self.leaving = control.should_save = False

    def _end_early(self, state: TrainerState, control: TrainerControl) -> None:
        """Export what the policy is now. Nothing is saved at this step: an attempt after a kill decides here again."""
        if self.stopped or state.global_step >= state.max_steps:
            return
        emit(f"ends here: {state.max_steps - state.global_step} of {state.max_steps} steps are left out")
        self.solved, control.should_training_stop = not self.watch.braked, True
        self.leaving = control.should_save = False

    @property
    def takes_back(self) -> bool:
        """Whether an earlier checkpoint is what the training leaves, and not the last weights."""
        return self.stopped or self.watch.braked or (self._plan.scorers is not None and self.watch.scores.was_better)

    def collapse(self, reason: str) -> None:
        """The policy cannot even be sampled from any more: to run again would end here again."""
        self.watch.keep(HealthFinding(verdict="STOP", rule="not_finite", step=self._at, reason=reason))
        self.stopped, self.leaving = True, False

    def _agree(self, *mine: bool) -> list[bool]:
        """What any rank says."""
        accelerator = self._trainer.accelerator
        if accelerator.num_processes == 1:
            return list(mine)
        flags = torch.tensor([[float(each) for each in mine]], device=accelerator.device)
        return [bool(each) for each in accelerator.gather(flags).amax(dim=0)]


def is_measured(row: dict[str, Any]) -> bool:
    """Whether a row of the Trainer's history is one of a step, or of the base model before the first."""
    return "seconds/step" in row or "held_out/length" in row


def finite(model: Any) -> bool:
    """Whether every trained weight is a finite number, or this rank's shard of it."""
    shards: Any = [weight for weight in model.parameters() if weight.requires_grad]
    local = [shard.to_local() if hasattr(shard, "to_local") else shard for shard in shards]
    return all(bool(torch.isfinite(each.detach()).all()) for each in local)


def memory() -> dict[str, float]:
    """Peak memory of this process in MB: of the device where there is one, else resident."""
    if torch.cuda.is_available():
        return {"memory_mb": torch.cuda.max_memory_allocated() / 1e6}
    return {"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


def write_completions(trainer: Any, folder: Path, step: int) -> None:
    """Completions that TRL still holds, for people, into `step-<step>.parquet`; nothing where the method draws none."""
    logs: Any = getattr(trainer, "_logs", None)
    if not logs or not logs["completion"] or not trainer.accelerator.is_main_process:
        return
    (rewards,) = logs["rewards"].values()
    columns = zip(logs["prompt"], logs["completion"], rewards, logs["advantages"], strict=False)
    rows = [
        {"prompt": json.dumps(asked, ensure_ascii=False), "completion": drawn[-1]["content"]}
        | {"reward": float(reward), "advantage": float(advantage)}
        for asked, drawn, reward, advantage in islice(columns, TABLE_ROWS)
    ]
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"step-{step:06d}.parquet")
