"""How often the gate errs, and what kills do to its evidence: `python -m benchmarks.evaluation [--small] [PART]`.
`margin`: simulated gates whose candidate loses one guard's whole margin. `kills`: SIGKILLs of `python -m evals answer`.
The last line is JSON with all figures."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.evaluation_gates import at_the_margin
from benchmarks.kills import result_of
from benchmarks.parts import chosen, measure, options
from benchmarks.training import write_plan
from evals.evaluate import publish_plan
from evals.records import EvalPlan
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.suite import ensure_suite
from pipeline.recipe import Evaluation, Training
from pipeline.recipe.methods import GRPO
from pipeline.recipe.rewards import Verifier
from pipeline.recipe.serving import TransformersServing
from pipeline.recipe.suites import preset_suite

BATCH = 32
"""Answers in flight where the evaluation is killed."""


def kills(small: bool) -> dict[str, float]:
    """20 SIGKILLs at random instants, in as many evaluations as that takes; each then ends. What was asked twice, and
    whether the evidence is that of an evaluation without a kill."""
    draw, times, items = random.Random(7), 1 if small else 20, 40 if small else 600
    killed = twice = evaluations = 0
    same = True
    with tempfile.TemporaryDirectory() as folder:
        candidate = _trained(Path(folder, "trained"), 2 if small else 32)
        whole = Store(Path(folder) / "whole")
        plan = _plan(whole, items, candidate, batch_size=256)
        with _run(whole, plan) as process:
            assert process.wait() == 0
        while killed < times:
            evaluations += 1
            store = Store(Path(folder) / f"killed-{evaluations}")
            plan = _plan(store, items, candidate, BATCH)
            while not _done(store, plan):
                with _run(store, plan) as process:
                    if killed < times:
                        time.sleep(draw.uniform(4, 14))
                        process.send_signal(signal.SIGKILL)
                    assert process.wait() in (0, -signal.SIGKILL)
                killed += not _done(store, plan)
            keys = [(file, json.loads(line)["answer"]["key"]) for file in _journals(store) for line in file.open("rb")]
            twice += len(keys) - len(set(keys))
            same &= _bundle(store, plan) == _bundle(whole, plan)
    print(f"  {killed} kills; evaluations: {evaluations}, of {4 * items:,} answers")
    print(f"  the evidence has {'the same' if same else 'ANOTHER'} digest as without a kill")
    return {"kills": float(killed), "answers_asked_twice": float(twice), "same_evidence_after_kills": float(same)}


def _trained(root: Path, steps: int) -> CheckpointRef:
    """What the trainer makes of the embedded model."""
    grpo = GRPO(steps=steps, learning_rate=1.2e-3, max_completion_tokens=32)
    path = write_plan(root, Training(grpo=grpo, seed=1, threads=1), seed=1)
    subprocess.run([sys.executable, "-m", "pipeline.training", str(path)], check=True, capture_output=True)
    return result_of(path).checkpoint


def _plan(store: Store, items: int, candidate: CheckpointRef, batch_size: int) -> EvalPlan:
    section = Evaluation(
        suites=(preset_suite("arithmetic", items=items),),
        serving=TransformersServing(batch_size=batch_size),
        samples_per_item=2,
        max_completion_tokens=32,
    )
    ensure_suite(store, preset_suite("arithmetic", items=items), section.seed)
    iteration = identify(0, "m", model_ref(MODEL_DIR), DatasetRef(uri="", rows=0, digest="d"), "r")
    plan = EvalPlan(iteration=iteration, section=section, verifier=Verifier(), candidate=candidate)
    publish_plan(store, plan)
    return plan


def _run(store: Store, plan: EvalPlan) -> subprocess.Popen[bytes]:
    path = store.path(plan.path("eval_plan.json"))
    return subprocess.Popen([sys.executable, "-m", "evals", "answer", str(path)], stdout=subprocess.DEVNULL)


def _done(store: Store, plan: EvalPlan) -> bool:
    return store.path(plan.path("eval_report.json")).exists()


def _journals(store: Store) -> list[Path]:
    return sorted(store.path("evaluation", "answers").rglob("*.jsonl"))


def _bundle(store: Store, plan: EvalPlan) -> str:
    """Of the evidence what does not hang on the batch size, which the section names."""
    folder = store.path(plan.path("evidence"))
    names = ("measurement.json", "arithmetic/champion.jsonl")
    return json.dumps({name: (folder / name).read_text(encoding="utf-8") for name in names})


PARTS = {"margin": at_the_margin, "kills": kills}

if __name__ == "__main__":
    asked = chosen(options(__doc__, "far fewer simulations and one kill, within a minute"), list(PARTS))
    measure({name: partial(PARTS[name], asked.small) for name in asked.parts})
