"""A training by NeMo RL, which resumes by itself from its newest checkpoint. Raises ValueError for what no retry mends
(64), SystemExit(143) after a pre-emption, RuntimeError for a crash."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from pipeline.core import layout
from pipeline.core.processes import Child
from pipeline.core.storage import CheckpointRef, write_atomically
from pipeline.rewards.custom import custom_scorer
from pipeline.training.account import result_of
from pipeline.training.journal import Kind, MetricsLog, TrainingJournal, read_journal, read_rows, step_line
from pipeline.training.nemo import data
from pipeline.training.nemo.limits import EXAMPLE, checkout_fault
from pipeline.training.nemo.output import WEIGHTS, Output, Row, SavedCheckpoint, Say, best, whole
from pipeline.training.nemo.render import (
    PLAN,
    PYTHON,
    STATISTICS,
    command,
    configuration,
    conversion,
    grpo_of,
    unknown_keys,
    workspace,
)
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import PREEMPTED, TrainingResult
from pipeline.training.sentinel import HealthMonitor
from pipeline.training.weights import copy_adapter, publish_adapter, publish_state

KILL_AFTER_S = 10.0
IMPORTED = "imported"
"""Folder of the workspace where NeMo RL's Python finds this package and no other one of ours."""


def run(
    plan: TrainingPlan,
    folder: Path,
    checkout: Path,
    say: Say,
    python: Sequence[str] = PYTHON,
    fence: Callable[[], None] = lambda: None,
) -> TrainingResult:
    """Train in `folder` with the NeMo RL in `checkout`, resuming what earlier attempts left; publish the weights.
    `fence` raises once a later start has claimed the folder: NeMo RL, which saves by itself, is ended at its next line.
    Raises ValueError, RuntimeError or SystemExit as the module says."""
    folder, checkout = folder.absolute(), checkout.absolute()
    config = prepare(plan, folder, checkout)
    attempt = _Attempt(plan, folder, say)
    attempt.train(command(str(config), python), checkout, fence)
    fence()
    saved = attempt.outcome()
    step = attempt.ours(saved.step) if saved else 0
    exported = CheckpointRef(adapter=plan.base, model=plan.base, step=0)  # stopped before it had any
    if saved is not None:
        exported = export(plan, saved, folder, step, checkout, python)
    attempt.journal.add("ended", step)
    events = read_journal(folder / layout.JOURNAL_FILE)
    return result_of(plan, events, exported, metrics=tuple(attempt.rows), health=attempt.watch.health)


def prepare(plan: TrainingPlan, folder: Path, checkout: Path) -> Path:
    """Write configuration and data; returns the configuration's path. Raises ValueError for what will never run."""
    if fault := checkout_fault(checkout):
        raise ValueError(fault)
    if custom := custom_scorer("verified", plan.rewards):
        with closing(custom):
            custom.start()
    space = Path(workspace(plan, str(folder)))
    longest = data.write(plan, space, grpo_of(plan).max_completion_tokens)
    tree = configuration(plan, str(folder), str(checkout), longest)
    if unknown := unknown_keys(tree, yaml.safe_load((checkout / EXAMPLE).read_bytes())):
        raise ValueError(
            f"The NeMo RL in {checkout} does not know {', '.join(unknown)}: its example has no such key. Correct "
            "trainer_args, or check out another release."
        )
    write_atomically(space / PLAN, plan.model_dump_json())
    (space / IMPORTED).mkdir(exist_ok=True)
    if not (link := space / IMPORTED / "pipeline").is_dir():
        link.unlink(missing_ok=True)
        link.symlink_to(Path(__file__).parents[2])
    path = space / "config.yaml"
    write_atomically(path, yaml.safe_dump(tree, sort_keys=False))
    return path


class _Attempt:
    """What one run of NeMo RL finds and leaves: checkpoints, rows, journal, health. Its steps are batches."""

    def __init__(self, plan: TrainingPlan, folder: Path, say: Say) -> None:
        self._plan, self._say = plan, say
        space = Path(workspace(plan, str(folder)))
        self._root, metrics = space / "checkpoints", folder / layout.METRICS_FILE
        self._lora = plan.training.lora is not None
        self._method, self._beta = plan.trained_by(), grpo_of(plan).beta
        self._steps = self._method.batches_in(self._method.steps)
        saved = whole(self._root, self._lora, say)
        self.reached = saved[0].step if saved else 0
        self.journal = TrainingJournal(folder / layout.JOURNAL_FILE)
        self.journal.add("started", self.ours(self.reached))
        if self.reached:
            say(f"resuming at step {self.ours(self.reached)}")
        self._log, logged = MetricsLog(metrics), read_rows(metrics)[0] if self.reached else []
        before = [row for row in logged if row.step <= self.ours(self.reached)]  # what the checkpoint has gone through
        self.rows: list[Row] = [{"step": float(row.step), **row.metrics} for row in before]
        self.watch = HealthMonitor(plan.training.sentinel, say=say)
        for row in self.rows:
            self.watch.add(row)
        self._output, self._statistics = Output(), space / STATISTICS
        self._preempted = False
        self._child: Child | None = None

    @property
    def stopped(self) -> bool:
        return self.watch.health.verdict == "STOP"

    def ours(self, step: int) -> int:
        """A step of NeMo RL in optimizer steps."""
        return step * self._method.updates_per_batch

    def train(self, line: Sequence[str], checkout: Path, fence: Callable[[], None]) -> None:
        """Run NeMo RL to its end, or to ours, unless an earlier attempt got there."""
        if self.reached >= self._steps or self.stopped:
            return
        grace_s = min(KILL_AFTER_S, 0.1 * self._plan.training.grace_s)
        ours = {
            "HF_DATASETS_CACHE": str(self._root.parent / "cache"),  # an erasure looks there
            "PYTHONPATH": str(self._root.parent / IMPORTED),
        }
        before = signal.signal(signal.SIGTERM, self._terminate)
        try:
            with Child(line, grace_s, watched=True, cwd=checkout, environment=ours) as self._child:
                if self._preempted:  # SIGTERM came while it was being started
                    self._child.end()
                for printed in self._child.lines():
                    fence()
                    self._keep(self._output.read(printed))
                code = self._child.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
        fence()
        self._keep(self._output.flush())
        if self.stopped:
            return
        if self._preempted or code == PREEMPTED:
            self._say(f"pre-empted after step {self.ours(self.reached)}, the last checkpoint stands")
            sys.exit(PREEMPTED)
        if code:
            tail = "\n".join(self._child.tail)
            raise RuntimeError(f"NeMo RL ended with {code}. Run it again to resume. Its last lines:\n{tail}")

    def outcome(self) -> SavedCheckpoint | None:
        """The last checkpoint; of a training that was stopped the best one, None if it came before any."""
        saved = whole(self._root, self._lora, self._say)
        if self.stopped:
            return best(saved)
        if not saved or saved[0].step != self._steps:
            there = saved[0].step if saved else "none"
            raise RuntimeError(
                f"NeMo RL ended as if all were well, and its checkpoint of step {self._steps} is not there (newest: "
                f"{there}). Look at its output, and run it again."
            )
        return saved[0]

    def _terminate(self, *_: Any) -> None:
        self._preempted = True
        self.journal.add("stopping", self.ours(self.reached), why="SIGTERM")
        threading.Thread(target=self._end_after_save, daemon=True).start()

    def _end_after_save(self) -> None:
        """As soon as no checkpoint is being written, or nine tenths of the grace are over."""
        until = time.monotonic() + 0.9 * self._plan.training.grace_s
        while any(self._root.glob("tmp_step_*")) and time.monotonic() < until:
            time.sleep(0.1)
        if self._child is not None:
            self._child.end()

    def _keep(self, row: Row | None) -> None:
        if row is None:
            return
        self.reached = int(row["step"])
        row["step"] = step = self.ours(self.reached)
        if not self._beta:
            row.pop("kl", None)  # without a reference NeMo RL says 0
        if "loss" in row and self._statistics.is_file():
            row.update(json.loads(self._statistics.read_bytes()))
        kinds: dict[Kind, str] = {"validated": "validation", "saved": "save"}
        for kind, name in kinds.items():
            if (seconds := row.pop(f"seconds/{name}", None)) is not None:
                self.journal.add(kind, step, {name: seconds})
        spent = {name.removeprefix("seconds/"): value for name, value in row.items() if name.startswith("seconds/")}
        if spent:
            self.journal.add("step", step, spent)
        self.rows.append(row)
        self._log.add(row)
        self._say(step_line(step, self._method.steps, row))
        self.watch.add(row)
        if self.stopped and self._child is not None:
            self._child.end()


def export(
    plan: TrainingPlan, saved: SavedCheckpoint, folder: Path, step: int, checkout: Path, python: Sequence[str]
) -> CheckpointRef:
    """Publish `adapter` and `model` in `folder`; without LoRA the one reference stands for both. LoRA is merged here:
    NeMo RL's converters merge Megatron checkpoints only. `step`: in optimizer steps. Raises RuntimeError when the
    conversion fails, ValueError for weights that are missing, don't belong or are not finite."""
    if plan.training.lora is not None:
        return publish_adapter(plan, folder, step, lambda to: copy_adapter(saved.folder / WEIGHTS, to))
    converted = folder / ".hf"
    shutil.rmtree(converted, ignore_errors=True)  # the converter refuses to replace one
    line = conversion(saved.folder, str(converted), python)
    done = subprocess.run(line, cwd=checkout, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{' '.join(line)} ended with {done.returncode}. Its last lines:\n{tail}")
    exported = publish_state(plan, folder, step, _loaded(converted).state_dict())
    shutil.rmtree(converted)
    return exported


def _loaded(source: Path) -> Any:
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype="auto", output_loading_info=True)
    model, info = loaded
    gaps = {"are missing": sorted(info["missing_keys"]), "don't belong": sorted(info["unexpected_keys"])}
    if problems := [f"{len(names)} {what}, such as {names[0]}" for what, names in gaps.items() if names]:
        raise ValueError(f"The weights in {source} are not the model's: {'; '.join(problems)}. Train on the same base.")
    return model
