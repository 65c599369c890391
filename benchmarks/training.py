"""What the loop adds to a training: `python -m benchmarks.training [--small]`.

Runs the same GRPO alternately through `python -m pipeline.training` (verified inputs, committed checkpoints, live
progress, export of adapter and merged model) and as a bare TRL script, as whole processes, and compares wall-clock
time and final weights. The last line is JSON: `ratio_to_bare_trl` is the ratio of medians, at most 1.03 wanted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.iteration import identify
from pipeline.recipe import GRPO, Rewards, Selection, Training
from pipeline.selection.evidence import Evidence
from pipeline.selection.preferences import PROMPTS, PreferenceDataset
from pipeline.storage import DatasetRef, Store, digest_file, model_ref
from pipeline.training.plan import plan_training


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--small", action="store_true", help="one short pair of runs, within a minute")
    chosen = options.parse_args()
    steps, pairs = (8, 1) if chosen.small else (60, 3)
    with tempfile.TemporaryDirectory() as folder:
        seconds: dict[str, list[float]] = {"ours": [], "bare TRL": []}
        digests: set[str] = set()
        for number in range(pairs):
            for name in seconds if number % 2 == 0 else reversed(seconds):
                root = Path(folder, f"{name.replace(' ', '-')}-{number}")
                took, adapter = run(name, root, steps)
                seconds[name].append(took)
                digests.add(digest_file(adapter))
                print(f"{name:<10} pair {number + 1}  {took:7.1f} s  adapter {digest_file(adapter)[:12]}", flush=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{'medians':<10}         " + "  ".join(f"{name} {value:.1f} s" for name, value in medians.items()))
    ratio = medians["ours"] / medians["bare TRL"]
    print(json.dumps({"ratio_to_bare_trl": round(ratio, 4), "same_weights": len(digests) == 1, "steps": steps}))


def run(name: str, root: Path, steps: int) -> tuple[float, Path]:
    """Seconds of the whole process, and the adapter that it left."""
    plan = write_plan(root, steps)
    if name == "ours":
        command, adapter = ["pipeline.training", str(plan)], plan.parent / "adapter"
    else:
        command, adapter = ["benchmarks.bare_trl", str(plan), str(root / "bare")], root / "bare"
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.monotonic() - started, adapter / "adapter_model.safetensors"


def write_plan(root: Path, steps: int) -> Path:
    """A GRPO plan over fresh problems of the demo task, as the selection stage would leave it."""
    store, base, settings = (
        Store(root),
        model_ref(MODEL_DIR),
        GRPO(steps=steps, learning_rate=1.2e-3, max_completion_tokens=32),
    )
    rows = [
        {"prompt": [{"role": "user", "content": p.prompt}], "reference": p.answer, "mixed": True}
        for p in problems(5, "train", steps * settings.prompts_per_step)
    ]
    path = store.path("prompts.parquet")
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=PROMPTS), path)
    prompts = DatasetRef(uri=str(path), rows=len(rows), digest=digest_file(path))
    iteration = identify(0, "benchmark", base, prompts, "")
    dataset = PreferenceDataset(
        iteration=iteration.id,
        pairs=prompts,
        prompts=prompts,
        evidence=Evidence(**{**dict.fromkeys(Evidence.model_fields, 0), "verifiable_prompts": len(rows)}),
        contaminated=0,
        capped_pairs=0,
    )
    training = Training(grpo=settings)
    plan_training(store, iteration, dataset, Selection(method="grpo"), training, Rewards())
    return store.path(iteration.path("training", "plan.json"))


if __name__ == "__main__":
    main()
