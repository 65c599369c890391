"""What the loop adds to a training: `python -m benchmarks.training [--small]`. The same GRPO runs alternately through
`python -m pipeline.training` and as a bare TRL script. The last line is JSON: `ratio_to_bare_trl` is the ratio of
median wall-clock times."""

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contexts import context_of
from benchmarks.kills import ENVIRONMENT
from benchmarks.measure import Took, measure
from benchmarks.parts import options
from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, ModelRef, Store, digest_file, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import mistaken_solution, problems
from pipeline.recipe import Compute, Selection, Training
from pipeline.recipe.methods import GRPO
from pipeline.rewards.records import LABELS
from pipeline.selection.preferences import build
from pipeline.selection.trainable import HeldApart
from pipeline.training.plan import plan_training

ARMS = ("ours", "bare TRL")


def main() -> None:
    chosen = options(__doc__, "one short pair of runs, within a minute").parse_args()
    steps, pairs = (2, 1) if chosen.small else (40, 5)
    found: dict[str, list[Took]] = {name: [] for name in ARMS}
    adapters = set[str]()
    os.environ |= ENVIRONMENT
    with tempfile.TemporaryDirectory() as folder:
        if not chosen.small:  # reads the libraries from disk once, for both
            run(ARMS[1], Path(folder, "warm-up"), 1)
        for number in range(pairs):
            for name in ARMS if number % 2 == 0 else reversed(ARMS):
                took, adapter = run(name, Path(folder, f"{name.replace(' ', '-')}-{number}"), steps)
                found[name].append(took)
                adapters.add(adapter)
                figures = f"{took.wall_s:7.1f} s  {took.cpu_s:7.1f} CPU s  adapter {adapter[:12]}"
                print(f"{name:<10} pair {number + 1}  {figures}", flush=True)
    wall = {name: statistics.median(took.wall_s for took in runs) for name, runs in found.items()}
    cpu = {name: statistics.median(took.cpu_s for took in runs) for name, runs in found.items()}
    for name in ARMS:
        print(f"{name:<10} median  {wall[name]:7.1f} s  {cpu[name]:7.1f} CPU s")
    figures = {
        "ratio_to_bare_trl": round(wall["ours"] / wall["bare TRL"], 4),
        "cpu_ratio_to_bare_trl": round(cpu["ours"] / cpu["bare TRL"], 4),
        "same_weights": len(adapters) == 1,
        "steps": steps,
    }
    print(json.dumps(figures))


def run(name: str, root: Path, steps: int) -> tuple[Took, str]:
    """Train once in a process of its own: what it took, and the digest of its adapter."""
    grpo = GRPO(steps=steps, learning_rate=1.2e-3, max_completion_tokens=32)
    plan = write_plan(root, Training(grpo=grpo))
    if name == "ours":
        command, adapter = ["pipeline.training", str(plan)], plan.parent / "adapter"
    else:
        command, adapter = ["benchmarks.bare_trl", str(plan), str(root / "bare")], root / "bare"
    return measure(command), digest_file(adapter / "adapter_model.safetensors")


def write_plan(root: Path, training: Training, method: str = "grpo", processes: int = 1, seed: int = 5) -> Path:
    """A plan over fresh problems of the demo task, as the selection stage would leave it; a tenth is held out."""
    wanted = training.grpo.batches * training.grpo.prompts_per_step
    drawn = problems(seed, "train", max(wanted, 200))
    rows = [
        label(f"{number}-{right}", p.prompt, p.solution if right else mistaken_solution(p), p.answer, right)
        for number, p in enumerate(drawn)
        for right in (0.0, 1.0)
    ]
    share = 0.2 if training.validation.every_steps else 0.0
    selection = Selection(method=method, held_out_share=share)  # type: ignore[arg-type]
    compute = Compute(processes=processes)
    return planned(Store(root), model_ref(MODEL_DIR), rows, selection=selection, training=training, compute=compute)


def planned(store: Store, base: ModelRef, rows: list[dict[str, Any]], **sections: Any) -> Path:
    """The plan of a training on these labels, all of which may be trained on; its path."""
    path = store.path("labels", "labels.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=LABELS), path)
    labels = DatasetRef(uri=str(path.parent), rows=len(rows), digest=digest_file(path))
    iteration = identify(0, "benchmark", base, labels, "")
    ids = frozenset((row["trace_id"], row["observation_id"]) for row in rows)
    context = context_of(store, iteration, **sections)
    plan_training(context, build(context, labels, HeldApart({}), lambda: ids), lambda: ids)
    return store.path(iteration.path("training", "plan.json"))


def label(id: str, prompt: str, completion: str, answer: str, right: float) -> dict[str, Any]:
    return {
        **dict.fromkeys(LABELS.names),
        "trace_id": id,
        "observation_id": id,
        "user_id": id,
        "consent": True,
        "prompt": json.dumps([{"role": "user", "content": prompt}]),
        "completion": completion,
        "reference": answer,
        "verifier": "math",
        "correct": right,
        "final_reward": right,
        "profile": "verified",
    }


if __name__ == "__main__":
    main()
