"""The launcher on a cluster: one gang at a time for a plan, until `result.json` is there. The local one's twin.

Rule: the newest attempt that is not over is followed; its object is made if it is not there, under a name that the plan
and the attempt's number determine, so that whoever launches again, after any crash, finds it. What a look means is
`classify.py`'s; what follows from it is here:

    wait            queued, starting, restarting (up to `start_timeout_s`), running, leaving
    a new attempt   pre-empted, and the backend does not start the gang again by itself; deleted before this launch
    retry           no capacity, a crash: RuntimeError
    never retry     refused, out of memory, no image, no volume, quota that never came, the time-out, deleted by
                    somebody, ten starts without a newer checkpoint: TrainingRefused

`result.json` is the truth, never the object's state. An attempt is over only when its object and its pods are gone, so
no two of them write; should one live on where nobody can see it, its number is too low (`checkpoints.writer`). A
launcher that is interrupted leaves the gang alone, unless the run was cancelled: then the gang is deleted, by the
launcher or, where none lives any more, by `abandon`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from k8s.attempts import GangAttempts
from k8s.classify import Classification
from k8s.client import KubernetesClient, Refused
from k8s.estimate import paid_devices
from k8s.follow import GangFollower, GangProgress, Hooks
from k8s.gang import Gang, gang_of
from k8s.ledger import LaunchAttempt, Ledger, ledger
from pipeline import layout
from pipeline.recipe import Compute, Kubernetes
from pipeline.storage import Store
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

AGAIN = frozenset(("preempted", "gone"))
NO_RETRY = frozenset(("refused", "out_of_memory", "image", "volume", "queued", "deleted", "stuck", "timed_out"))
FOR_PEOPLE = {
    "refused": "Its last lines say what to change.",
    "out_of_memory": "Lower what it holds (per_device_train_batch_size, max_completion_tokens, fsdp2), or shm_gb.",
    "image": "Push it, or correct compute.kubernetes.image, and see that the nodes may pull it.",
    "volume": "Create it: k8s/manifests/bases/storage; or correct compute.kubernetes.claim.",
    "queued": "Free quota of the queue, raise the ClusterQueue's, or ask for less (compute.nodes).",
    "no_capacity": "Run it again later, or set compute.kubernetes.capacity to spot_first.",
    "starting": "Look at kubectl get events: why no pod is made, or none starts; k8s/README.md says what to look for.",
    "deleted": "Somebody deleted it. Run it again to go on from the last checkpoint.",
    "timed_out": "Raise training.timeout_s and run it again: it resumes.",
    "crashed": "Run it again to resume.",
    "stuck": "See why its pods go (kubectl get events: a full disk evicts too), or save more often.",
}


def launch(
    store: Store,
    plan: TrainingPlan,
    settings: Kubernetes,
    client: KubernetesClient,
    hooks: Hooks,
    pipes: dict[str, str] | None = None,
) -> TrainingResult | None:
    """Train a published plan on the cluster to its end; None when the plan is not to train.

    `pipes`: environment of a Dagster Pipes session. Raises TrainingRefused for what no retry mends, else RuntimeError.
    """
    if plan.decision.method == "none":
        return None
    attempts = GangAttempts(store, plan.iteration)
    path = _path(store, plan)
    progress = GangProgress(path.parent)
    starts = 0
    while True:
        if (training_result := finished(store, plan)) is not None:
            attempts.settle(hooks.now())
            return training_result
        attempt = attempts.current(hooks.now(), lambda number: gang_of(plan, path, settings, number).name)
        gang = gang_of(plan, path, settings, attempt.attempt, pipes)
        follower = GangFollower(
            client, gang, attempts, attempt, hooks, lambda n, base=starts: progress.started(base + n)
        )
        try:
            verdict = follower.follow()
        except Refused as refusal:
            raise TrainingRefused(f"{refusal} A gang that is there goes on; launch again to follow it.") from refusal
        if (training_result := finished(store, plan)) is not None:
            return training_result
        if verdict.cause == "succeeded":
            raise RuntimeError(
                f"{gang.name} ended well without {path.with_name(layout.RESULT_FILE)}: is the claim mounted?"
            )
        if verdict.cause not in AGAIN:
            _give_up(gang, verdict)
        hooks.log(f"{gang.name} {verdict.cause.replace('_', ' ')} ({verdict.why}): a new attempt resumes")
        starts += 1 + follower.restarts


def abandon(
    store: Store, plan: TrainingPlan, settings: Kubernetes, client: KubernetesClient, hooks: Hooks, why: str
) -> LaunchAttempt | None:
    """Delete the gang that earlier launches of a plan left in the cluster; the attempt that it was, if there is one."""
    attempts = GangAttempts(store, plan.iteration)
    if (attempt := attempts.unfinished()) is not None:
        gang = gang_of(plan, _path(store, plan), settings, attempt.attempt)
        GangFollower(client, gang, attempts, attempt, hooks, lambda _: True).abandon(why)
    return attempt


def finished(store: Store, plan: TrainingPlan) -> TrainingResult | None:
    """The plan's result, if it is there."""
    training_result = store.read(layout.iteration(plan.iteration, layout.RESULT), TrainingResult)
    return training_result if training_result is not None and training_result.plan_digest == plan.digest() else None


def _path(store: Store, plan: TrainingPlan) -> Path:
    return store.path(layout.iteration(plan.iteration, layout.PLAN))


def _give_up(gang: Gang, verdict: Classification) -> NoReturn:
    message = f"{gang.name}: {verdict.cause.replace('_', ' ')}: {verdict.why}. {FOR_PEOPLE.get(verdict.cause, '')}"
    if verdict.cause in NO_RETRY:
        raise TrainingRefused(message)
    raise RuntimeError(message)


def account_for(store: Store, plan: TrainingPlan, result: TrainingResult, compute: Compute) -> Ledger:
    """What the training took, over all launches of it; published beside its result."""
    placed = compute.model_copy(update={"nodes": plan.nodes, "processes": plan.processes})
    account = ledger(GangAttempts(store, result.iteration).all(), result, placed, paid_devices(placed))
    store.write(layout.iteration(result.iteration, layout.LEDGER), account)
    return account
