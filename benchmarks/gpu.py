"""What training and serving take on a GPU, and whether a killed training ends with the same bits there.

`python -m benchmarks.gpu`, whole or `--only` one of:
speed: GRPO and DPO with LoRA of models of 1.5B's and 7B's shape with random weights in bf16, through `python -m
pipeline.training`: step time by part, tokens/s, MFU, memory, seconds to start and to save. memory: the same in 4 bits,
and every weight. serving: answers of the default engine. matrix: every method under every
strategy, killed and resumed.
`--small` is the embedded model on CPU. Says nothing of what a model learns. The last line is JSON.
"""

import json
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gpu_matrix
from benchmarks.gpu_data import QWEN2_1_5B, QWEN2_7B, write_base, write_plan
from benchmarks.parts import options
from pipeline.core.storage import model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.recipe import Accelerator, Checkpoints, Lora, Rewards
from pipeline.recipe.methods import DPO, GRPO
from pipeline.recipe.rewards import Weights
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import Answer, AnswerRequest, Sampling, answer_seed
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.training.journal import read_journal, read_rows
from tests.pipeline.training.runs import failure, kill, reached, start

BATCHES = (64, 64, 16)
"""Answers at once: twice the same, and once others."""


def serve(base: Path, questions: int, tokens: int) -> dict[str, Any]:
    """Tokens a second by batch size, and the shares of answers that two sessions gave to the letter."""
    asked = _asked(questions)
    sampling, model = Sampling(max_completion_tokens=tokens), model_ref(base)
    rates: dict[str, float] = {}
    answers: list[dict[str, str]] = []
    for size in BATCHES:
        drawn: list[Answer] = []
        engine = TransformersEngine(TransformersServing(batch_size=size), lambda line: None)
        with engine.open("champion", model) as session:
            session.answer(asked[:size], Sampling(max_completion_tokens=2), lambda answer: None)  # weights, kernels
            begun = time.monotonic()
            session.answer(asked, sampling, drawn.append)
            rates[str(size)] = round(sum(each.tokens for each in drawn) / (time.monotonic() - begun), 1)
        answers.append({each.key: each.text for each in drawn})
    return {
        "tokens_per_s": rates,
        "same_in_the_same_batches": _same(answers[0], answers[1]),
        "same_in_other_batches": _same(answers[0], answers[2]),
    }


def _asked(questions: int) -> list[AnswerRequest]:
    return [
        AnswerRequest(
            key=str(number), messages=[{"role": "user", "content": problem.prompt}], seed=answer_seed(0, str(number), 0)
        )
        for number, problem in enumerate(problems(7, "heldout", questions))
    ]


def _same(one: dict[str, str], other: dict[str, str]) -> float:
    return sum(one[key] == other[key] for key in one) / len(one)


WARM_UP = 2
"""First steps that no figure counts: kernels are chosen and memory is taken."""
PARTS = ("generate", "reward", "logprobs", "update")
YARDSTICK = {"mfu": 0.163, "tokens_per_s_per_device": 1087}
"""Seed 003: an 8B model with vLLM on B200."""
SHAPES = {"1.5B": QWEN2_1_5B, "7B": QWEN2_7B}
PARTLY_RIGHT = Rewards(verified=Weights(correct=1.0, repetition=1.0))
"""Rewards that random text can earn in part, or there would be no gradient."""


class Run(NamedTuple):
    """A training to time. `base`: a name of SHAPES, or `embedded`. `training`: further sections of the recipe's."""

    name: str
    base: str
    settings: GRPO | DPO
    training: Mapping[str, Any] = {}
    whole: bool = False
    """To the export, which merges and writes the whole model; else it is killed after its last step."""


def grpo(micro: int, steps: int = 4, **args: Any) -> GRPO:
    """16 prompts x 8 completions of 256 tokens a step."""
    return GRPO(steps=steps, max_completion_tokens=256, trainer_args={"per_device_train_batch_size": micro, **args})


def dpo(micro: int, pairs: int = 64, steps: int = 6, **args: Any) -> DPO:
    """`pairs` a step, twice `micro` answers at once."""
    taken = {"per_device_train_batch_size": micro, **args}
    return DPO(steps=steps, batch_size=pairs, learning_rate=1e-5, trainer_args=taken)


NF4: Mapping[str, Any] = {"lora": Lora(quantise="nf4")}
STORED: dict[str, Any] = {"gradient_checkpointing": False}
"""Activations are kept for the backward pass, not computed again."""
SPEED = (
    Run("1.5B GRPO", "1.5B", grpo(32), whole=True),
    Run("1.5B DPO", "1.5B", dpo(32)),
    Run("1.5B DPO, activations kept", "1.5B", dpo(16, **STORED)),
    Run("7B GRPO", "7B", grpo(16)),
    Run("7B DPO", "7B", dpo(16, pairs=32)),
)
MEMORY = (
    Run("7B DPO nf4", "7B", dpo(16, pairs=32, steps=4), NF4),
    Run("7B GRPO nf4", "7B", grpo(16, steps=4), NF4),
    Run("1.5B DPO, every weight", "1.5B", dpo(16, steps=4), {"lora": None}),
)
SMALL = (
    Run(
        "embedded GRPO",
        "embedded",
        GRPO(steps=3, prompts_per_step=4, num_generations=4, max_completion_tokens=32, learning_rate=1e-3),
        whole=True,
    ),
    Run("embedded DPO", "embedded", DPO(steps=3, batch_size=8, learning_rate=3e-4, beta=0.3)),
)


def measured(run: Run, root: Path, base: Path, accelerator: Accelerator) -> dict[str, float]:
    """Figures of one training as a whole process. Raises RuntimeError with the trainer's last output when it fails."""
    saved = Checkpoints(every_steps=run.settings.steps)
    per_row = 1 if run.base == "embedded" else 8
    plan = write_plan(root, base, run.settings, accelerator, PARTLY_RIGHT, per_row, saved, **run.training)
    begun = time.time()
    process = start(plan, {})
    while process.poll() is None and (run.whole or reached(plan.parent) < run.settings.steps):
        time.sleep(0.05)
    time.sleep(0 if run.whole else 1)  # the row of metrics comes after the journal's
    kill(process)
    if (run.whole and process.returncode) or reached(plan.parent) < run.settings.steps:
        raise failure(plan, process.returncode)
    events = read_journal(plan.parent / "journal.jsonl")
    at = {event.kind: event.at for event in events}
    rows = [{"step": row.step, **row.metrics} for row in read_rows(plan.parent / "metrics.jsonl")[0]]
    taken = figures(rows) | {"start_s": at["ready"] - begun}
    if run.whole:
        taken["end_s"] = time.time() - at["step"]
    return taken


def figures(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians over the steps after the warm-up, seconds a step by part (`other`: what no part claims), peak memory."""
    rows = metrics[WARM_UP:] or metrics
    taken = {name: _median(rows, f"seconds/{name}") for name in ("step", *PARTS)}
    taken["other"] = max(0.0, taken["step"] - sum(taken[part] for part in PARTS))
    for name in ("tokens_per_s", "tokens_per_s_per_device", "generate_tokens_per_s", "mfu"):
        if any(name in row for row in rows):
            taken[name] = _median(rows, name)
    taken["memory_mb"] = max((row.get("memory_mb", 0.0) for row in rows), default=0.0)
    return taken


def _median(rows: Sequence[Mapping[str, float]], name: str) -> float:
    values = [row[name] for row in rows if name in row]
    return statistics.median(values) if values else 0.0


def timed(
    runs: Iterable[Run], folder: Path, base_of: Callable[[str], Path], accelerator: Accelerator
) -> dict[str, dict[str, float]]:
    """One after the other, each with the device to itself; one that fails is printed, and the others go on."""
    results: dict[str, dict[str, float]] = {}
    for run in runs:
        root = folder / run.name.replace(" ", "-")
        try:
            results[run.name] = measured(run, root, base_of(run.base), accelerator)
            print(f"{run.name}: {results[run.name]}", flush=True)
        except RuntimeError as error:
            print(f"{run.name}: {error}", flush=True)
        shutil.rmtree(root, ignore_errors=True)  # a merged model of 7B is 15 GB
    return results


def main() -> None:
    parser = options(__doc__, "the embedded model on CPU, some minutes")
    parser.add_argument("--only", choices=("speed", "memory", "serving", "matrix"), default="")
    parser.add_argument("--variant", default="", help="of the matrix, those in whose name this pattern is")
    parser.add_argument("--at-once", type=int, default=1, help="variants of the matrix")
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="dense bf16 of the device; of an H200")
    chosen = parser.parse_args()
    import torch

    if not chosen.small and not torch.cuda.is_available():
        raise SystemExit("No CUDA device here. Run it with --small, or on a machine with a GPU.")
    device = "cpu" if chosen.small else torch.cuda.get_device_name()
    accelerator = Accelerator(name=device, peak_tflops=chosen.peak_tflops)
    report: dict[str, Any] = {"device": device, "machine": platform.machine(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        bases = {"embedded": MODEL_DIR}

        def base_of(name: str) -> Path:
            if name not in bases:
                bases[name] = write_base(Path(folder, name), SHAPES[name], "cuda")
            return bases[name]

        if chosen.only in ("", "speed"):
            report["speed"] = timed(SMALL if chosen.small else SPEED, Path(folder), base_of, accelerator)
            print(f"{device}, peak {accelerator.peak_tflops:g} TFLOPS; yardstick {YARDSTICK}")
        if chosen.only in ("", "memory") and not chosen.small:
            report["memory"] = timed(MEMORY, Path(folder), base_of, accelerator)
        if chosen.only in ("", "serving"):
            for name in ("embedded",) if chosen.small else ("1.5B", "7B"):
                report[f"serving {name}"] = serve(base_of(name), *((16, 16) if chosen.small else (64, 128)))
                print(f"serving {name}: {report[f'serving {name}']}", flush=True)
        if chosen.only in ("", "matrix"):
            outcomes = gpu_matrix.run(
                Path(folder), chosen.at_once, chosen.variant or ("sft ddp lora" if chosen.small else "")
            )
            report["matrix"] = {str(each.variant): each.exact for each in outcomes}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
