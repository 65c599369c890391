"""A task on a cluster: one gang at a time for a plan, until its result is there. The newest attempt that is not over is
followed; a pre-emption opens the next, RuntimeError asks for a retry, the refusal forbids one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from k8s.attempts import GangAttempts, LaunchAttempt
from k8s.classify import Classification
from k8s.client import KubernetesClient, Refused
from k8s.follow import GangFollower, GangProgress, Hooks, NotOurs
from k8s.gang import Gang

R = TypeVar("R")

NO_RETRY = frozenset(
    ("refused", "out_of_memory", "image", "volume", "queued", "no_queue", "forbidden", "deleted", "stuck", "timed_out")
)
FOR_PEOPLE = {
    "refused": "Its last lines say what to change.",
    "out_of_memory": "Lower what it holds (per_device_train_batch_size, max_completion_tokens, fsdp2), or shm_gb.",
    "image": "Push it, or correct compute.kubernetes.image, and see that the nodes may pull it.",
    "volume": "Create it: k8s/manifests/bases/storage; or correct compute.kubernetes.claim.",
    "queued": "Free quota of the queue, raise the ClusterQueue's, or ask for less (compute.nodes).",
    "no_queue": "Correct compute.kubernetes.queue, or create that queue: k8s/manifests/bases/kueue has `training`.",
    "over_quota": "Run it again once others leave room.",
    "forbidden": "The gang gets no more pods while that stands.",
    "no_capacity": "Run it again later, or set compute.kubernetes.capacity to spot_first.",
    "restarting": "Run it again later: it goes on from its last checkpoint.",
    "starting": "Look at kubectl get events: why no pod is made, or none starts; k8s/README.md says what to look for.",
    "deleted": "Somebody deleted it. Run it again to go on from the last checkpoint.",
    "timed_out": "Raise training.timeout_s and run it again: it resumes.",
    "crashed": "Run it again to resume.",
    "stuck": "See why its pods go (kubectl get events: a full disk evicts too), or save more often.",
}


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
    advice: Mapping[str, str] = field(default_factory=dict[str, str])
    """For people, by cause, where FOR_PEOPLE has other advice."""


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
    advice = {**FOR_PEOPLE, **task.advice}.get(verdict.cause, "")
    message = f"{gang.name}: {verdict.cause.replace('_', ' ')}: {verdict.why}. {advice}"
    begun = verdict.cause == "queued" and bool(task.left())  # quota that came once may come again, and nothing is lost
    if verdict.cause in NO_RETRY and not begun:
        raise task.refusal(message)
    raise RuntimeError(message)
