"""The launcher on a cluster: one gang at a time for a plan, until `result.json` is there. The local one's twin.

Rule: the newest attempt that is not over is followed; its object is made if it is not there, under a name that the plan
and the attempt's number determine, so that whoever launches again, after any crash, finds it. What a look means is
`classify.py`'s; what follows from it is here:

    wait            queued, starting, restarting (up to `start_timeout_s`), running, leaving
    a new attempt   pre-empted, and the backend does not start the gang again by itself; deleted before this launch
    retry           no capacity, a crash, the time-out: RuntimeError
    never retry     refused, out of memory, image, quota that never came, deleted by somebody, ten starts without a
                    newer checkpoint: TrainingRefused

`result.json` is the truth, never the object's state. An attempt is over only when its object and its pods are gone, so
no two of them write; should one live on where nobody can see it, its number is too low (`checkpoints.turn`). A launcher
that is interrupted leaves the gang alone, unless the run was cancelled: then the gang is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar

from k8s.attempts import Attempts
from k8s.classify import NOT_STARTED, OVER, Verdict, classify
from k8s.client import Client, Refused, Unreachable
from k8s.gang import Gang, gang_of
from k8s.ledger import LaunchAttempt
from k8s.observe import Observed, PodSeen, observe, pods_of, resource
from k8s.progress import FRUITLESS, Progress
from k8s.render import render
from k8s.render.placement import plan_label
from k8s.tail import Tail
from pipeline.recipe import Kubernetes
from pipeline.storage import Store
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult

AWAY_S = 1800.0
"""How long the API server may be away before the step gives up; the gang goes on without it."""
IMAGE_PATIENCE_S = 300.0
"""For an image that can't be pulled: registries have bad minutes."""
GONE_WITHIN_S = 600.0
"""For pods of an earlier attempt to end, beside their grace period."""
AGAIN = frozenset(("preempted", "gone"))
NO_RETRY = frozenset(("refused", "out_of_memory", "image", "queued", "deleted", "stuck"))
FOR_PEOPLE = {
    "refused": "Its last lines say what to change.",
    "out_of_memory": "Lower what it holds (per_device_train_batch_size, max_completion_tokens, fsdp2), or shm_gb.",
    "image": "Push it, or correct compute.kubernetes.image, and see that the nodes may pull it.",
    "queued": "Free quota of the queue, raise the ClusterQueue's, or ask for less (compute.nodes).",
    "no_capacity": "Run it again later, or set compute.kubernetes.capacity to spot_first.",
    "starting": "Look at kubectl describe pod; k8s/README.md says what to look for.",
    "deleted": "Somebody deleted it. Run it again to go on from the last checkpoint.",
    "timed_out": "Raise training.timeout_s and run it again: it resumes.",
    "crashed": "Run it again to resume.",
    "stuck": "See why its pods go (kubectl get events: a full disk evicts too), or save more often.",
}

T = TypeVar("T")


class Hooks(NamedTuple):
    """What the launcher is told by, and tells."""

    log: Callable[[str], None]
    """Hears a line for people."""
    line: Callable[[str], bool] = lambda line: False
    """Sees every line of the first pod; True takes it."""
    cancelled: Callable[[], bool] = lambda: False
    """Whether a person cancelled the run, when the launcher is interrupted."""
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def launch(
    store: Store,
    plan: TrainingPlan,
    settings: Kubernetes,
    client: Client,
    hooks: Hooks,
    pipes: dict[str, str] | None = None,
) -> TrainingResult | None:
    """Train a published plan on the cluster to its end; None when the plan is not to train.

    `pipes`: environment of a Dagster Pipes session. Raises TrainingRefused for what no retry mends, else RuntimeError.
    """
    if plan.decision.method == "none":
        return None
    attempts = Attempts(store, plan.iteration)
    path = store.path("iterations", plan.iteration, "training", "plan.json")
    progress = Progress(path.with_name("checkpoints"))
    starts = 0
    while True:
        if (found := finished(store, plan)) is not None:
            attempts.settle(hooks.now())
            return found
        attempt = attempts.current(hooks.now())
        gang = gang_of(plan, path, settings, attempt.attempt, pipes)
        try:
            named = attempt.model_copy(update={"name": gang.name})
            follower = _Follower(
                client, gang, attempts, named, hooks, lambda n, base=starts: progress.started(base + n)
            )
            verdict = follower.follow()
        except Refused as refusal:
            raise TrainingRefused(str(refusal)) from refusal
        if (found := finished(store, plan)) is not None:
            return found
        if verdict.cause == "succeeded":
            raise RuntimeError(f"{gang.name} ended well without {path.with_name('result.json')}: is the claim mounted?")
        if verdict.cause not in AGAIN:
            _give_up(gang, verdict)
        hooks.log(f"{gang.name} {verdict.cause.replace('_', ' ')} ({verdict.why}): a new attempt resumes")
        starts += 1 + follower.restarts


def finished(store: Store, plan: TrainingPlan) -> TrainingResult | None:
    """The plan's result, if it is there."""
    found = store.read(f"iterations/{plan.iteration}/training/result.json", TrainingResult)
    return found if found is not None and found.plan_digest == plan.digest() else None


def _give_up(gang: Gang, verdict: Verdict) -> NoReturn:
    message = f"{gang.name}: {verdict.cause.replace('_', ' ')}: {verdict.why}. {FOR_PEOPLE.get(verdict.cause, '')}"
    if verdict.cause in NO_RETRY:
        raise TrainingRefused(message)
    raise RuntimeError(message)


class _Follower:
    """One attempt, from wherever it stands to its end."""

    def __init__(
        self,
        client: Client,
        gang: Gang,
        attempts: Attempts,
        attempt: LaunchAttempt,
        hooks: Hooks,
        worthwhile: Callable[[int], bool],
    ) -> None:
        """`worthwhile`: whether to go on after so many restarts inside the attempt."""
        self._client, self._gang, self._attempts, self._attempt, self._hooks = client, gang, attempts, attempt, hooks
        self._tail = Tail(client, gang, hooks.log, hooks.line)
        self._said, self._requests, self._worthwhile = "", client.requests, worthwhile
        self.restarts = 0

    def follow(self) -> Verdict:
        """Until it is over and gone; the attempt's record is closed then."""
        try:
            verdict = self._until_over()
            if verdict.cause != "succeeded":
                self._delete()
                self._others_gone()
        except Exception:
            raise
        except BaseException:  # the step is interrupted: a cancelled run takes its gang along
            if self._hooks.cancelled():
                self._delete()
                self._hooks.log(f"{self._gang.name} is deleted: the run was cancelled")
                self._close(Verdict("deleted", "the run was cancelled"))
            else:
                self._hooks.log(f"{self._gang.name} goes on; launch again to follow it")
            raise
        self._close(verdict)
        return verdict

    def _until_over(self) -> Verdict:
        seen, since = False, self._hooks.now()
        while True:
            observed = self._patiently(lambda: observe(self._client, self._gang))
            if observed.state == "absent" and not seen:
                if not self._make():
                    return Verdict("gone", "pods of it live on without their owner")
                seen = True
                continue
            self._check_ours(observed)
            verdict = classify(observed)
            if verdict.cause == "leaving" and not seen:
                verdict = self._left()
            self.restarts = max(self.restarts, observed.restarts)
            if not self._worthwhile(self.restarts) and verdict.cause not in OVER:
                verdict = Verdict("stuck", f"{FRUITLESS} starts in a row left no newer checkpoint")
            self._tell(verdict)
            self._tail.follow(observed)
            if verdict.cause in OVER:
                return verdict._replace(why=f"{verdict.why}{self._tail.last()}")
            seen = True
            waited = self._hooks.now() - since
            if verdict.cause not in NOT_STARTED:
                since = self._hooks.now()
            elif waited > (IMAGE_PATIENCE_S if verdict.cause == "image" else self._gang.settings.start_timeout_s):
                return verdict._replace(why=f"{verdict.why}, for {waited:.0f} s")
            self._pause()

    def _make(self) -> bool:
        """Put the gang into the cluster, once nothing is left of other attempts. False: pods of this one are there."""
        if self._pods_of_attempt(self._gang.attempt) or not self._others_gone():
            return False
        self._attempts.write(self._attempt)
        owner: dict[str, object] = {}
        for obj in render(self._gang):
            owned = {**obj, "metadata": {**obj["metadata"], **({"ownerReferences": [owner]} if owner else {})}}
            applied = self._patiently(lambda owned=owned: self._client.apply(owned))
            owner = owner or {
                **{key: applied[key] for key in ("apiVersion", "kind")},
                **{key: applied["metadata"][key] for key in ("name", "uid")},
            }
        self._hooks.log(
            f"{self._gang.name}: {self._gang.nodes} x {self._gang.settings.instance_type} in namespace "
            f"{self._gang.settings.namespace}, by {self._gang.settings.backend}"
        )
        return True

    def _delete(self) -> None:
        at = resource(self._gang)
        self._patiently(lambda: self._client.delete(at, self._gang.settings.namespace, self._gang.name))

    def _left(self) -> Verdict:
        """Wait for an object that was being deleted before this launch looked."""
        until = self._hooks.now() + self._gang.grace_s + GONE_WITHIN_S
        while self._patiently(lambda: observe(self._client, self._gang)).state == "leaving":
            if self._hooks.now() > until:  # a finalizer waits for a node that nobody reaches
                break
            self._pause()
        return Verdict("gone", "it was being deleted")

    def _others_gone(self) -> bool:
        """Wait for the pods of every attempt up to this one. Those that don't end are on nodes that nobody reaches.

        False when some are of this very attempt: they could still write.
        """
        until = self._hooks.now() + self._gang.grace_s + GONE_WITHIN_S
        while alive := self._pods_of_attempt():
            if self._hooks.now() > until:
                self._hooks.log(
                    f"{', '.join(pod.name for pod in alive)}: no end of them. A later attempt fences them off"
                )
                return all(pod.attempt != self._gang.attempt for pod in alive)
            self._pause()
        return True

    def _pods_of_attempt(self, attempt: int | None = None) -> list[PodSeen]:
        """Those that are not over, of one attempt or of all."""
        pods = self._patiently(lambda: pods_of(self._client, self._gang, every_attempt=True))
        return [pod for pod in pods if pod.alive and attempt in (None, pod.attempt)]

    def _patiently(self, ask: Callable[[], T]) -> T:
        """What the API server answers, also when it is away for a while: the gang does not need it."""
        away_since = self._hooks.now()
        while True:
            try:
                return ask()
            except Unreachable as error:
                if self._hooks.now() - away_since > AWAY_S:
                    raise RuntimeError(f"{error} The gang goes on; run this again to follow it.") from error
                self._tell(Verdict("running", f"for all we know; waiting for the API server ({error})"))
                self._pause()

    def _check_ours(self, observed: Observed) -> None:
        if observed.state != "absent" and observed.plan != plan_label(self._gang):
            raise TrainingRefused(
                f"Namespace {self._gang.settings.namespace} has a {self._gang.settings.backend} {self._gang.name} that "
                "is none of this training's. It is left as it is: see whose it is (kubectl describe), then remove it."
            )

    def _tell(self, verdict: Verdict) -> None:
        said = f"{verdict.cause.replace('_', ' ')}: {verdict.why}"
        if said != self._said:
            self._hooks.log(f"{self._gang.name} {said}")
        self._said = said

    def _pause(self) -> None:
        self._hooks.sleep(self._gang.settings.poll_s)

    def _close(self, verdict: Verdict) -> None:
        over = {
            "closed_at": self._hooks.now(),
            "outcome": verdict.cause,
            "why": verdict.why[:500],
            "restarts": self.restarts,
            "requests": self._client.requests - self._requests,
        }
        self._attempts.write(self._attempt.model_copy(update=over))
