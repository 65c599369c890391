"""Trainings and evaluations as tasks on a cluster: what is run, where its result is, what advice it needs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from k8s.attempts import GangAttempts, Ledger, ledger
from k8s.estimate import LaunchEstimate, estimate_launch, expected_hours, over_budget, paid_devices
from k8s.gang import NO_DIGEST, evaluation_gang, gang_of
from k8s.lint import Violation, lint_gang
from k8s.render import render
from k8s.task import Task
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe import Compute, Kubernetes, Recipe
from pipeline.serving.memory import Machine
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

R = TypeVar("R")

CHECKPOINTS = ("checkpoints/step-*", "nemo/*/checkpoints/step_*")
"""In a training's folder: ours, and NeMo RL's."""
ADVICE = {
    "out_of_memory": "Choose a larger compute.evaluation.instance_type, or lower shm_gb.",
    "image": "Push it, or correct compute.evaluation.image, and see that the nodes may pull it.",
    "queued": "Free quota of the queue, raise the ClusterQueue's, or ask for less (compute.evaluation.devices).",
    "deleted": "Somebody deleted it. Run it again: what was answered is not asked again.",
    "timed_out": "Raise compute.evaluation.timeout_s and run it again: what was answered is not asked again.",
    "crashed": "Run it again: what was answered is not asked again.",
    "stuck": "See why its pods go before they answer (kubectl get events: a full disk evicts too).",
}
"""Of an evaluation, where it is not a training's."""


class EvaluationRefused(ValueError):
    """The cluster will never run this evaluation as it is; the message says what to change."""


def training_task(
    store: Store,
    plan: TrainingPlan,
    settings: Kubernetes,
    pipes: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Task[TrainingResult]:
    """The task of a published plan that trains. `pipes` and `addresses` as in `gang_of`."""
    path = store.path(layout.iteration(plan.iteration, layout.PLAN))

    def result() -> TrainingResult | None:
        found = store.read(layout.iteration(plan.iteration, layout.RESULT), TrainingResult)
        return found if found is not None and found.plan_digest == plan.digest() else None

    return Task(
        gang=lambda number: gang_of(plan, path, settings, number, pipes, addresses),
        attempts=GangAttempts(store, plan.iteration),
        result=result,
        result_path=path.with_name(layout.RESULT_FILE),
        left=lambda: {str(each) for pattern in CHECKPOINTS for each in path.parent.glob(pattern)},
        refusal=TrainingRefused,
    )


def evaluation_task(
    store: Store,
    iteration: str,
    digest: str,
    compute: Compute,
    result: Callable[[], R | None],
    addresses: Mapping[str, str] | None = None,
) -> Task[R]:
    """The task of an evaluation whose plan is published. `digest`: sha256 of what decides its evidence, hexadecimal.
    `result` reads its report; `addresses` as in `evaluation_gang`."""
    plan_path = store.path(layout.iteration(iteration, layout.EVAL_PLAN))

    def left() -> set[str]:
        journals = store.path(layout.EVALUATION).rglob("*.jsonl")  # of answers and judgements
        return {f"{path}:{path.stat().st_size}" for path in journals}

    return Task(
        gang=lambda number: evaluation_gang(iteration, digest, plan_path, compute, number, addresses),
        attempts=GangAttempts(store, iteration, layout.EVAL_ATTEMPTS),
        result=result,
        result_path=store.path(layout.iteration(iteration, layout.EVAL_REPORT)),
        left=left,
        refusal=EvaluationRefused,
        advice=ADVICE,
    )


def machine(compute: Compute) -> Machine:
    """What the evaluation's pod has: bytes of its memory and of each of its GPUs. Raises as `evaluation_gang` does."""
    gang = evaluation_gang("example", NO_DIGEST, Store("/").path("plan"), compute)
    devices = gang.processes if gang.instance.gpus else 0
    return Machine(gang.instance.memory_mib << 20, (gang.instance.gpu_memory_gb * 10**9,) * devices)


def account_for(store: Store, plan: TrainingPlan, result: TrainingResult, compute: Compute) -> Ledger:
    """What the training took, over all launches of it; published beside its result."""
    placed = compute.model_copy(update={"nodes": plan.nodes, "processes": plan.processes})
    account = ledger(GangAttempts(store, result.iteration).all(), result, placed, paid_devices(placed))
    store.write(layout.iteration(result.iteration, layout.LEDGER), account)
    return account


class LaunchCheck(NamedTuple):
    """Whether a plan may be launched. `refusals`: why not; empty when nothing speaks against it."""

    findings: list[Violation]
    cost: LaunchEstimate
    refusals: list[str]


def check_launch(recipe: Recipe, plan: TrainingPlan, plan_path: Path) -> LaunchCheck:
    """The lint of the rendered gang, where the recipe has a cluster, and the expected cost of a plan that trains."""
    method, settings = plan.trained_by(), recipe.compute.kubernetes
    findings: list[Violation] = []
    if settings is not None:
        gang = gang_of(plan, plan_path, settings)
        findings = lint_gang(gang, render(gang))
    if recipe.compute.evaluation is not None:
        path = plan_path.parent.with_name(layout.EVAL_PLAN)
        gang = evaluation_gang(plan.iteration, NO_DIGEST, path, recipe.compute)
        findings += lint_gang(gang, render(gang))
    expected, timeout_s = plan.decision.expected.get(method.kind), recipe.training.timeout_s
    hours = expected_hours(expected, timeout_s) if expected else (0.0, timeout_s / 3600)
    cost = estimate_launch(recipe.compute, hours, recipe.training.checkpoints)
    refusal = over_budget(cost, recipe.compute.budget_usd)
    errors = [finding for finding in findings if finding.severity == "error"]
    return LaunchCheck(
        findings=findings,
        cost=cost,
        refusals=[refusal] * bool(refusal) + [f"{each.rule}: {each.problem} {each.fix}" for each in errors],
    )
