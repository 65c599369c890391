"""Plans of evaluations with the embedded model, small enough for a test."""

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from evals.evaluate import publish_plan
from evals.records import EvalPlan, EvalReport
from k8s.launch import Task, evaluation_task
from pipeline.core import layout
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.suite import ensure_suite
from pipeline.recipe import Compute, Evaluation, Kubernetes
from pipeline.recipe.compute import EvaluationPod
from pipeline.recipe.rewards import Verifier
from pipeline.recipe.serving import TransformersServing
from pipeline.recipe.suites import ItemsSuite, preset_suite

SECTION = Evaluation(
    suites=(preset_suite("arithmetic", items=24),),
    serving=TransformersServing(batch_size=4),
    samples_per_item=2,
    max_completion_tokens=32,
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


def published(store: Store, candidate: ModelRef) -> EvalPlan:
    """The plan of an evaluation of the embedded model against that candidate, its first suite the sums."""
    suite = SECTION.suites[0]
    assert isinstance(suite, ItemsSuite)
    ensure_suite(store, suite, SECTION.seed)
    iteration = identify(0, "m", model_ref(MODEL_DIR), DatasetRef(uri="", rows=0, digest="d"), "r")
    checkpoint = CheckpointRef(adapter=candidate, model=candidate, step=1)
    plan = EvalPlan(iteration=iteration, section=SECTION, verifier=Verifier(), candidate=checkpoint)
    publish_plan(store, plan)
    return plan


def task(store: Store, plan: EvalPlan, settings: Kubernetes) -> Task[EvalReport]:
    """The evaluation on that cluster."""
    return evaluation_task(
        store,
        plan.iteration.id,
        plan.digest(),
        Compute(kubernetes=settings, evaluation=EvaluationPod()),
        lambda: store.read(plan.path(layout.EVAL_REPORT), EvalReport),
    )
