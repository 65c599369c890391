"""The launcher of trainings on a cluster, until `result.json` is there. The local one's twin.

What a look at a gang means is `classify.py`'s; what follows from it, of any task, is `task.py`'s:

    wait            queued, starting, restarting (up to `start_timeout_s`), running, leaving
    a new attempt   pre-empted, and the backend does not start the gang again by itself; deleted before this launch
    retry           no capacity, a crash: RuntimeError
    never retry     refused, out of memory, no image, no volume, quota that never came, the time-out, deleted by
                    somebody, ten starts without a newer checkpoint: TrainingRefused

`result.json` is the truth, never the object's state. An attempt is over only when its object and its pods are gone, so
no two of them write; should one live on where nobody can see it, its claim is not the newest (`checkpoints.claims`). A
launcher that is interrupted leaves the gang alone, unless the run was cancelled: then the gang is deleted, by the
launcher or, where none lives any more, by `task.delete`.
"""

from __future__ import annotations

from pathlib import Path

from k8s.attempts import GangAttempts
from k8s.client import KubernetesClient
from k8s.estimate import paid_devices
from k8s.follow import Hooks
from k8s.gang import LaunchEnvironment, gang_of
from k8s.ledger import Ledger, ledger
from k8s.task import Task, run
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe import Compute, Kubernetes
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

CHECKPOINTS = ("checkpoints/step-*", "nemo/*/checkpoints/step_*")
"""In a training's folder: ours, and NeMo RL's."""


def launch(
    store: Store,
    plan: TrainingPlan,
    settings: Kubernetes,
    client: KubernetesClient,
    hooks: Hooks,
    given: LaunchEnvironment = LaunchEnvironment(),  # noqa: B008 (it is frozen)
) -> TrainingResult | None:
    """Train a published plan on the cluster to its end; None when the plan is not to train.

    Raises TrainingRefused for what no retry mends, else RuntimeError.
    """
    if plan.decision.method == "none":
        return None
    return run(training_task(store, plan, settings, given), client, hooks)


def training_task(
    store: Store,
    plan: TrainingPlan,
    settings: Kubernetes,
    given: LaunchEnvironment = LaunchEnvironment(),  # noqa: B008 (it is frozen)
) -> Task[TrainingResult]:
    """The task of one training."""
    path = _path(store, plan)
    return Task(
        gang=lambda number: gang_of(plan, path, settings, number, given),
        attempts=GangAttempts(store, plan.iteration),
        result=lambda: finished(store, plan),
        result_path=path.with_name(layout.RESULT_FILE),
        left=lambda: {str(each) for pattern in CHECKPOINTS for each in path.parent.glob(pattern)},
        refusal=TrainingRefused,
    )


def finished(store: Store, plan: TrainingPlan) -> TrainingResult | None:
    """The plan's result, if it is there."""
    training_result = store.read(layout.iteration(plan.iteration, layout.RESULT), TrainingResult)
    return training_result if training_result is not None and training_result.plan_digest == plan.digest() else None


def _path(store: Store, plan: TrainingPlan) -> Path:
    return store.path(layout.iteration(plan.iteration, layout.PLAN))


def account_for(store: Store, plan: TrainingPlan, result: TrainingResult, compute: Compute) -> Ledger:
    """What the training took, over all launches of it; published beside its result."""
    placed = compute.model_copy(update={"nodes": plan.nodes, "processes": plan.processes})
    account = ledger(GangAttempts(store, result.iteration).all(), result, placed, paid_devices(placed))
    store.write(layout.iteration(result.iteration, layout.LEDGER), account)
    return account
