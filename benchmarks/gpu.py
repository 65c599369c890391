"""Where a step's time goes on a GPU, and whether a killed training ends with the same bits: `python -m benchmarks.gpu`.

GRPO and DPO with LoRA of a 1.5B-shaped model with random weights in bf16, through `python -m pipeline.training`: step
time by part, tokens/s, MFU, memory; then the same training undisturbed and with a SIGKILL, in deterministic settings.
`--small` is the embedded model on CPU. Says nothing of what a model learns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_data import QWEN2_1_5B, write_base, write_plan
from pipeline.demo import MODEL_DIR
from pipeline.locations import Document
from pipeline.methods import DPO, GRPO
from pipeline.recipe import Accelerator, Checkpoints, Rewards
from pipeline.recipe.rewards import Weights
from pipeline.storage import digest_file
from pipeline.training.journal import read_journal
from pipeline.training.result import TrainingResult
from pipeline.training.throughput import peak_tflops

WARM_UP = 2
"""First steps that no figure counts: kernels are chosen and memory is taken."""
PARTS = ("generate", "reward", "logprobs", "update")
YARDSTICK = {"mfu": 0.163, "tokens_per_s_per_device": 1087}
"""Seed 003: an 8B model with vLLM on B200."""


class Case(NamedTuple):
    """One training to look at: on what device, of which base, with which settings."""

    device: str
    accelerator: Accelerator
    settings: Mapping[str, GRPO | DPO]
    """Of the timed runs, by method."""
    resumed: Mapping[str, GRPO | DPO]
    """Of the runs that are killed: smaller."""
    rewards: Rewards
    problems_per_row: int
    environment: Mapping[str, str]


class Resumed(NamedTuple):
    """One training undisturbed, and once more with a SIGKILL in it."""

    undisturbed: TrainingResult
    killed: TrainingResult
    adapters: tuple[str, str]
    """Digests of their weights."""

    @property
    def same(self) -> bool:
        return len(set(self.adapters)) == 1 and bool(self.killed.resumed_from)


def on_gpu(name: str) -> Case:
    """The 1.5B shape; rewards that random text can earn in part, or there would be no gradient."""
    micro: dict[str, Any] = {"per_device_train_batch_size": 32}
    exact: dict[str, Any] = {"full_determinism": True}
    return Case(
        device="cuda",
        accelerator=Accelerator(name=name, peak_tflops=peak_tflops(name) or 989.0),
        settings={
            "grpo": GRPO(steps=10, max_completion_tokens=256, trainer_args=micro),
            "dpo": DPO(steps=16, batch_size=64, learning_rate=1e-5, trainer_args=micro),
        },
        resumed={
            "grpo": GRPO(steps=6, prompts_per_step=4, max_completion_tokens=64, trainer_args=exact),
            "dpo": DPO(steps=6, batch_size=8, learning_rate=1e-5, trainer_args=exact),
        },
        rewards=Rewards(verified=Weights(correct=1.0, repetition=1.0)),
        problems_per_row=8,
        environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    )


def on_cpu() -> Case:
    """The embedded model: the same script in seconds."""
    small = {
        "grpo": GRPO(steps=6, prompts_per_step=4, num_generations=4, max_completion_tokens=32, learning_rate=1e-3),
        "dpo": DPO(steps=6, batch_size=8, learning_rate=3e-4, beta=0.3),
    }
    cpu = Accelerator(name=platform.machine(), peak_tflops=0.1, usd_per_hour=0)
    return Case("cpu", cpu, small, small, Rewards(), 1, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})


def train(case: Case, root: Path, base: Path, settings: GRPO | DPO, kill_at: int | None = None) -> TrainingResult:
    """One training as whole processes. With `kill_at` it dies by SIGKILL after that step, and is started again.

    Raises RuntimeError with the trainer's last words when it fails.
    """
    saved = Checkpoints(every_steps=2 if kill_at else settings.steps)
    plan = write_plan(root, base, settings, case.accelerator, case.rewards, case.problems_per_row, saved)
    if kill_at is not None:
        process = _start(case, plan)
        while process.poll() is None and _reached(plan.parent) < kill_at:
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: nobody else is in it
        process.wait()
    code = _start(case, plan).wait()
    if code:
        said = (plan.parent / "output.txt").read_text()[-3000:]
        raise RuntimeError(f"python -m pipeline.training {plan} ended with {code}:\n{said}")
    path = plan.parent / "result.json"
    return TrainingResult.model_validate_json(path.read_bytes(), context=Document(path))


def _start(case: Case, plan: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **case.environment}
    command = [sys.executable, "-m", "pipeline.training", str(plan)]
    with (plan.parent / "output.txt").open("ab") as said:
        return subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)


def _reached(folder: Path) -> int:
    return max((event.step for event in read_journal(folder / "journal.jsonl") if event.kind == "step"), default=0)


def resume(case: Case, root: Path, base: Path, method: str) -> Resumed:
    """The same training undisturbed, and killed in the middle between two checkpoints."""
    settings = case.resumed[method]
    undisturbed = train(case, root / "undisturbed", base, settings)
    killed = train(case, root / "killed", base, settings, kill_at=settings.steps // 2)
    digests = [
        digest_file(Path(run.checkpoint.adapter.uri) / "adapter_model.safetensors") for run in (undisturbed, killed)
    ]
    return Resumed(undisturbed, killed, (digests[0], digests[1]))


def figures(result: TrainingResult) -> dict[str, float]:
    """Medians over the steps after the warm-up, seconds a step by part (`other`: what no part claims), peak memory."""
    rows = result.metrics[WARM_UP:] or result.metrics
    found = {name: _median(rows, f"seconds/{name}") for name in ("step", *PARTS)}
    found["other"] = max(0.0, found["step"] - sum(found[part] for part in PARTS))
    for name in ("tokens_per_s", "tokens_per_s_per_device", "generate_tokens_per_s", "mfu"):
        if any(name in row for row in rows):
            found[name] = _median(rows, name)
    found["memory_mb"] = max((row.get("memory_mb", 0.0) for row in rows), default=0.0)
    return found


def _median(rows: Sequence[Mapping[str, float]], name: str) -> float:
    values = [row[name] for row in rows if name in row]
    return statistics.median(values) if values else 0.0


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each method."""
    parts = (*PARTS, "other")
    lines = [f"{'':<6}{'s/step':>8}" + "".join(f"{part:>10}" for part in parts) + "   tokens/s    MFU  memory"]
    for method, values in found.items():
        split = "".join(f"{values[part]:>10.3f}" for part in parts)
        mfu = f"{values['mfu']:.1%}" if "mfu" in values else "-"
        rates = f"{values.get('tokens_per_s', 0):>11,.0f}{mfu:>7}{values['memory_mb'] / 1024:>7.1f} GB"
        lines.append(f"{method:<6}{values['step']:>8.3f}{split}{rates}")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--small", action="store_true", help="the embedded model on CPU, about a minute")
    options.add_argument(
        "--only", choices=("speed", "resume"), help="one half; both take about eight minutes on an H200"
    )
    chosen = options.parse_args()
    import torch

    if not chosen.small and not torch.cuda.is_available():
        raise SystemExit("No CUDA device here. Run it with --small, or on a machine with a GPU.")
    case = on_cpu() if chosen.small else on_gpu(torch.cuda.get_device_name())
    said: dict[str, Any] = {"device": case.accelerator.name, "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        base = MODEL_DIR if chosen.small else write_base(Path(folder, "base"), QWEN2_1_5B, case.device)
        if chosen.only != "resume":
            runs = {name: train(case, Path(folder, name), base, each) for name, each in case.settings.items()}
            said |= {name: figures(run) for name, run in runs.items()}
            print(f"{case.accelerator.name}, peak {case.accelerator.peak_tflops:g} TFLOPS; yardstick {YARDSTICK}")
            print(table({name: said[name] for name in runs}), flush=True)
        if chosen.only != "speed":
            for name in case.resumed:
                found = resume(case, Path(folder, f"{name}-resumed"), base, name)
                said[f"{name}_resume_is_exact"] = found.same
                at = ", ".join(map(str, found.killed.resumed_from)) or "never"
                print(f"{name}: killed, resumed at {at}; adapters {' '.join(each[:12] for each in found.adapters)}")
    print(json.dumps(said))


if __name__ == "__main__":
    main()
