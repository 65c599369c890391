"""Plans of evaluations with the embedded model, small enough for a test, and what their journals and bundles hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from evals.measurements import EvalReport
from evals.plan import EvalPlan, publish_plan
from k8s.evaluation import EvaluationJob, evaluation_task
from k8s.task import Task
from pipeline.core import layout
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.suite import ensure_suite
from pipeline.recipe import Compute, Evaluation, Kubernetes
from pipeline.recipe.compute import EvaluationPod
from pipeline.recipe.rewards import Judge, Verifier
from pipeline.recipe.serving import TransformersServing
from pipeline.recipe.suites import ArithmeticSuite

SECTION = Evaluation(
    suites=(ArithmeticSuite(items=24),),
    serving=TransformersServing(batch_size=4),
    samples_per_item=2,
    max_completion_tokens=32,
    improvement_alpha=0.05,
)


def noisy(folder: Path) -> ModelRef:
    """Another model than the embedded one: its weights with a little noise."""
    shutil.copytree(MODEL_DIR, folder)
    draw, tensors = np.random.default_rng(1), load_file(folder / "model.safetensors")
    changed = {
        name: (value + 0.05 * value.std() * draw.standard_normal(value.shape)).astype(value.dtype)
        for name, value in tensors.items()
    }
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return model_ref(folder)


def published(store: Store, candidate: ModelRef, section: Evaluation = SECTION, judge: Judge | None = None) -> EvalPlan:
    """The plan of an evaluation of the embedded model against that candidate, its first suite the sums."""
    suite = section.suites[0]
    assert isinstance(suite, ArithmeticSuite)
    ensure_suite(store, suite, section.seed)
    iteration = identify(0, "m", model_ref(MODEL_DIR), DatasetRef(uri="", rows=0, digest="d"), "r")
    checkpoint = CheckpointRef(adapter=candidate, model=candidate, step=1)
    plan = EvalPlan(iteration=iteration, section=section, verifier=Verifier(), candidate=checkpoint, judge=judge)
    publish_plan(store, plan)
    return plan


def task(
    store: Store,
    plan: EvalPlan,
    settings: Kubernetes,
    pod: EvaluationPod | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Task[EvalReport]:
    """The evaluation on that cluster."""
    return evaluation_task(
        store,
        EvaluationJob(plan.iteration.id, plan.digest()),
        Compute(kubernetes=settings, evaluation=pod or EvaluationPod()),
        lambda: store.read(plan.path(layout.EVAL_REPORT), EvalReport),
        addresses,
    )


def keys(store: Store) -> list[str]:
    """Of the answers in the journals, in their order; a key twice was asked twice."""
    files = sorted(store.path(layout.ANSWERS).glob("*/*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line)["answer"]["key"] for line in lines]


def judged(store: Store) -> list[str]:
    """Of the pairs in the journals of judgements, in their order."""
    files = sorted(store.path(layout.JUDGEMENTS).rglob("*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [each["key"] for each in map(json.loads, lines) if each["item"]]
