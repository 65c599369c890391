"""What interruptions cost a training, and that they change nothing: `python -m benchmarks.resume [--small]`. Adapters
under random schedules of SIGKILL and SIGTERM must be one. The last line is JSON: `kill_schedules`, `distinct_digests`
by method, `goodput` by number of pre-emptions, and steps lost by signal."""

import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.kills import Zygote, adapter_of, result_of, survive
from benchmarks.parts import options
from benchmarks.training import write_plan
from pipeline.recipe import Checkpoints, Training, Validation, load
from pipeline.recipe.methods import DPO, GRPO
from pipeline.training.result import Preemption

OFF_POLICY = GRPO(
    steps=12,
    prompts_per_step=4,
    num_generations=4,
    num_minibatches=4,
    max_completion_tokens=32,
    learning_rate=1e-3,
    beta=0.05,
    trainer_args={"per_device_train_batch_size": 4},
)
PAIRS = DPO(steps=12, batch_size=16, learning_rate=3e-4, beta=0.3, trainer_args={"per_device_train_batch_size": 8})
ASKED = Validation(every_steps=4, prompts=8, samples=1, max_completion_tokens=32)


def main() -> None:
    small = options(__doc__, "two schedules and one pre-emption, within minutes").parse_args().small
    schedules, counts = (2, (0, 1)) if small else (20, (0, 1, 3, 6))
    training = load("jobs/recipes/embedded.yaml").training
    if small:
        training = training.model_copy(update={"grpo": training.grpo.model_copy(update={"steps": 8})})
    lost: dict[str, list[int]] = {}
    digests: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in ("grpo", "dpo"):
            found = kill(Path(folder), method, schedules // 2, lost)
            digests[method] = len(set(found))
        goodput = {count: preempt(Path(folder, f"preempted-{count}"), training, count, lost) for count in counts}
    figures = {
        "kill_schedules": schedules // 2 * 2,
        "distinct_digests": digests,
        "goodput": {str(count): round(share, 3) for count, share in goodput.items()},
        "lost_steps": {cause: _spread(steps) for cause, steps in sorted(lost.items())},
    }
    print(json.dumps(figures))


def kill(folder: Path, method: str, schedules: int, lost: dict[str, list[int]]) -> list[str]:
    """Adapter digests of one undisturbed training and of `schedules` disturbed ones."""
    settings = Training(grpo=OFF_POLICY, dpo=PAIRS, validation=ASKED, checkpoints=Checkpoints(every_steps=2))
    zygote = Zygote(folder / f"{method}.log")
    whole = write_plan(folder / f"{method}-whole", settings, method)
    assert zygote.attempt(whole).code == 0, zygote.output.read_text(encoding="utf-8")
    found, whole_s = [adapter_of(whole)], result_of(whole).goodput.total_s
    for seed in range(schedules):
        plan = write_plan(folder / f"{method}-{seed}", settings, method)
        attempts = survive(zygote.attempt, plan, random.Random(f"{method}/{seed}"), 5, whole_s)
        codes = " ".join(str(attempt.code) for attempt in attempts)
        found.append(adapter_of(plan))
        print(f"{method} schedule {seed + 1:2}  attempts ended with {codes:<20}  {found[-1][:12]}", flush=True)
        _count(result_of(plan).preemptions, lost)
    return found


def preempt(root: Path, training: Training, count: int, lost: dict[str, list[int]]) -> float:
    """Goodput of a training whose process is pre-empted `count` times, each time after an equal share of its steps."""
    plan, steps = write_plan(root, training), training.grpo.steps
    due = [round(steps * (number + 1) / (count + 1)) for number in range(count)]
    while not plan.with_name("result.json").exists():
        with subprocess.Popen(
            [sys.executable, "-m", "pipeline.training", str(plan)], stdout=subprocess.PIPE, encoding="utf-8"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if due and f"step {due[0]}/" in line:
                    due.pop(0)
                    process.send_signal(signal.SIGTERM)
        assert process.returncode in (0, 143), process.returncode
    result = result_of(plan)
    badput = "  ".join(f"{cause} {seconds:.1f}" for cause, seconds in result.goodput.badput_s.items() if seconds)
    print(
        f"{count} pre-emptions: goodput {result.goodput.share:.3f} of {result.goodput.total_s:.1f} s; {badput}",
        flush=True,
    )
    _count(result.preemptions, lost)
    return result.goodput.share


def _count(preemptions: Sequence[Preemption], lost: dict[str, list[int]]) -> None:
    for each in preemptions:
        lost.setdefault(each.cause, []).append(each.lost_steps)


def _spread(steps: Sequence[int]) -> dict[str, Any]:
    return {"interruptions": len(steps), "mean": round(statistics.fmean(steps), 2), "most": max(steps)}


if __name__ == "__main__":
    main()
