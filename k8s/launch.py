"""Trainings and evaluations as tasks on a cluster: one gang at a time for a plan, until its result is there. The newest
attempt that is not over is followed; a pre-emption opens the next."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, NoReturn, TypeVar

from k8s.attempts import GangAttempts, LaunchAttempt, Ledger, ledger
from k8s.classify import Classification
from k8s.client import KubernetesClient, Refused
from k8s.estimate import LaunchEstimate, estimate_launch, over_budget, paid_devices
from k8s.follow import GangFollower, GangProgress, Hooks, NotOurs
from k8s.gang import NO_DIGEST, Gang, evaluation_gang, example_gangs, gang_of
from k8s.hours import expected_hours, model_hours
from k8s.lint import Violation, lint_gang
from k8s.render import render
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe import Compute, Kubernetes, Recipe
from pipeline.recipe.methods import AnyMethod
from pipeline.serving.engines import Machine
from pipeline.training.launch import TrainingRefused, possible_methods, training_faults
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

R = TypeVar("R")

NO_RETRY = frozenset(
    ("refused", "out_of_memory", "image", "volume", "queued", "no_queue", "forbidden", "deleted", "stuck", "timed_out")
)
ADVICE = {
    "refused": "Its last lines say what to change.",
    "out_of_memory": "Lower what it holds (batch sizes, max_completion_tokens, fsdp2) or shm_gb, or take a larger "
    "instance_type.",
    "image": "Push it, or correct the recipe's image, and see that the nodes may pull it.",
    "volume": "Create it: k8s/manifests/bases/storage; or correct compute.kubernetes.claim.",
    "queued": "Free quota of the queue, raise the ClusterQueue's, or ask for less (nodes, devices).",
    "no_queue": "Correct compute.kubernetes.queue, or create that queue: k8s/manifests/bases/kueue has `training`.",
    "over_quota": "Run it again once others leave room.",
    "forbidden": "The gang gets no more pods while that stands.",
    "no_capacity": "Run it again later, or set compute.kubernetes.capacity to spot_first.",
    "restarting": "Run it again later: it resumes.",
    "starting": "Look at kubectl get events: why no pod is made, or none starts; k8s/README.md says what to look for.",
    "deleted": "Somebody deleted it. Run it again to resume.",
    "timed_out": "Raise its timeout_s and run it again: it resumes.",
    "crashed": "Run it again to resume.",
    "stuck": "See why its pods go (kubectl get events: a full disk evicts too), or save more often.",
}
"""By cause, for people."""


@dataclass(frozen=True)
class Task(Generic[R]):
    """What a cluster is to do for a plan."""

    gang: Callable[[int], Gang]
    """Of the attempt of that number."""
    attempts: GangAttempts
    result: Callable[[], R | None]
    """What comes of it, once it is there."""
    result_path: Path
    left: Callable[[], set[str]]
    """What its starts have left so far, by names: ten starts that leave nothing new are the last."""
    refusal: type[ValueError]
    """Raised for what no retry mends."""


def run(task: Task[R], client: KubernetesClient, hooks: Hooks) -> R:
    """Follow the task to its end. Raises its refusal for what no retry mends, else RuntimeError."""
    progress = GangProgress(task.left)
    starts = 0
    while True:
        if (result := task.result()) is not None:
            task.attempts.settle(hooks.now())
            return result
        attempt = task.attempts.current(hooks.now(), lambda number: task.gang(number).name)
        gang = task.gang(attempt.attempt)
        follower = GangFollower(
            client, gang, task.attempts, attempt, hooks, lambda n, base=starts: progress.started(base + n)
        )
        try:
            verdict = follower.follow()
        except NotOurs as refusal:
            raise task.refusal(str(refusal)) from refusal
        except Refused as refusal:
            raise task.refusal(f"{refusal} A gang that is there goes on; launch again to follow it.") from refusal
        if (result := task.result()) is not None:
            return result
        if verdict.cause == "succeeded":
            raise RuntimeError(f"{gang.name} ended well without {task.result_path}: is the claim mounted?")
        if verdict.cause not in ("preempted", "gone"):
            _give_up(task, gang, verdict)
        hooks.log(f"{gang.name} {verdict.cause.replace('_', ' ')} ({verdict.why}): a new attempt resumes")
        starts += 1 + follower.restarts


def delete(
    task: Task[R], client: KubernetesClient, hooks: Hooks, why: str, held_only: bool = False
) -> LaunchAttempt | None:
    """Delete the gang that earlier launches of a task left in the cluster; the attempt that it was, if there is one.

    `held_only`: unless a queue holds it, leave it: it may be far.
    """
    if (attempt := task.attempts.unfinished()) is None:
        return None
    follower = GangFollower(client, task.gang(attempt.attempt), task.attempts, attempt, hooks, lambda _: True)
    return attempt if follower.abandon(why, held_only) else None


def _give_up(task: Task[R], gang: Gang, verdict: Classification) -> NoReturn:
    message = f"{gang.name}: {verdict.cause.replace('_', ' ')}: {verdict.why}. {ADVICE.get(verdict.cause, '')}"
    begun = verdict.cause == "queued" and bool(task.left())  # quota that came once may come again, and nothing is lost
    if verdict.cause in NO_RETRY and not begun:
        raise task.refusal(message)
    raise RuntimeError(message)


CHECKPOINTS = ("checkpoints/step-*", "nemo/*/checkpoints/step_*")
"""In a training's folder: ours, and NeMo RL's."""


class EvaluationRefused(ValueError):
    """The cluster will never run this evaluation as it is; the message says what to change."""


def training_task(
    store: Store,
    plan: TrainingPlan,
    settings: Kubernetes,
    addresses: Mapping[str, str] | None = None,
) -> Task[TrainingResult]:
    """The task of a published plan that trains. `addresses` as in `gang_of`."""
    path = store.path(layout.iteration(plan.iteration, layout.PLAN))

    def result() -> TrainingResult | None:
        found = store.read(layout.iteration(plan.iteration, layout.RESULT), TrainingResult)
        return found if found is not None and found.plan_digest == plan.digest() else None

    return Task(
        gang=lambda number: gang_of(plan, path, settings, number, addresses),
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


def recipe_refusals(recipe: Recipe) -> list[str]:
    """What speaks against a training before there is a plan: what this machine lacks for it, mistakes of the recipe's
    gangs, and a budget below what the measured seconds of a step come to for each method that it may choose."""
    lacks = training_faults(recipe, possible_methods(recipe))
    try:
        gangs = example_gangs(recipe) if recipe.compute.kubernetes is not None else []
        bills = [_bill(recipe, method, None) for method in possible_methods(recipe) if recipe.compute.expected.step_s]
    except ValueError as unknown:
        return [*lacks, f"compute: {unknown}"]
    over = [over_budget(bill, recipe.compute.budget_usd) for bill in bills]
    return [
        *lacks,
        *(_refusal(each) for gang in gangs for each in lint_gang(gang, render(gang)) if each.severity == "error"),
        *(over[:1] if all(over) else []),
    ]


def _refusal(finding: Violation) -> str:
    return f"{finding.rule}: {finding.where}: {finding.problem}. {finding.fix}"


def _bill(recipe: Recipe, method: AnyMethod, modelled: float | None) -> LaunchEstimate:
    hours, _ = expected_hours(recipe, method, modelled)
    return estimate_launch(recipe.compute, (hours.low, hours.high), recipe.training.checkpoints)


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
    cost = _bill(recipe, method, model_hours(recipe).hours.get(method.kind))
    refusal = over_budget(cost, recipe.compute.budget_usd)
    errors = [finding for finding in findings if finding.severity == "error"]
    return LaunchCheck(
        findings=findings,
        cost=cost,
        refusals=[refusal] * bool(refusal) + [_refusal(each) for each in errors],
    )
