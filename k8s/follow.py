"""One attempt at a training or an evaluation, followed until it is over and gone. Its record comes before its object;
at the end go the object and its pods, then the record is closed."""

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from k8s.attempts import GangAttempts, LaunchAttempt
from k8s.classify import NO_PROGRESS, NOT_STARTED, OVER, Classification, classify
from k8s.client import KubernetesClient, Refused, Unreachable
from k8s.gang import Gang
from k8s.log_tail import LogTail
from k8s.observe import Observed, PodSeen, observe, pods_of, resource
from k8s.pod import plan_label
from k8s.render import render

AWAY_S = 1800.0
"""How long the API server may be away before the step gives up; the gang goes on without it."""
NEVER_HEARD_S = 60.0
"""The same for one that has not answered this launch at all: likely it is not the right one."""
CONFLICT = 409
"""The API server's answer where what is applied is another's by now: Kueue writes into a RayJob that it admits."""
GONE_WITHIN_S = 600.0
"""For what is deleted to be gone, beside its grace period."""
SELF_RESTARTING = ("jobset", "volcano")
"""Backends that start a pre-empted gang again by themselves."""

T = TypeVar("T")


class Hooks(NamedTuple):
    log: Callable[[str], None]
    """Hears a line for people."""
    cancelled: Callable[[], bool] = lambda: False
    """Whether a person cancelled the run, when the launcher is interrupted."""
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


class NotOurs(ValueError):
    """An object of somebody else has the gang's name."""


class GangFollower:
    """One attempt. Raises Refused, NotOurs for an object of somebody else, RuntimeError without an API."""

    def __init__(
        self,
        client: KubernetesClient,
        gang: Gang,
        attempts: GangAttempts,
        attempt: LaunchAttempt,
        hooks: Hooks,
        worthwhile: Callable[[int], bool],
    ) -> None:
        """`worthwhile`: whether to go on after so many restarts inside the attempt."""
        self._client, self._gang, self._attempts, self._attempt, self._hooks = client, gang, attempts, attempt, hooks
        self._tail = LogTail(client, gang, hooks.log)
        self._last_detail, self._worthwhile = "", worthwhile
        self._taken = ""
        self.restarts = 0

    def follow(self) -> Classification:
        """Until it is over and gone; the attempt's record is closed then."""
        number = self._attempt.attempt
        earlier = self._attempts.ending(number)
        try:
            verdict = earlier or self._attempts.end(number, self._until_over())
            if verdict.cause != "succeeded" and self._attempts.open(number):
                self._delete()
                self._await_pods()
        except Exception:  # an error of ours or of the cluster, which the caller classifies
            raise
        except BaseException:  # the step is being interrupted
            if self._hooks.cancelled():
                self.abandon("the run was cancelled")
            else:
                self._hooks.log(f"{self._gang.name} goes on; launch again to follow it")
            raise
        self._close(verdict)
        return Classification("gone", f"an earlier launch saw it end: {verdict.why}") if earlier else verdict

    def abandon(self, why: str, held_only: bool = False) -> bool:
        """Delete the gang and close its record; its pods may take their grace, for the next attempt waits for them.
        `held_only`: only if its queue holds it now; False where it does not."""
        if held_only and not self._delete_held():
            return False
        verdict = self._attempts.end(self._attempt.attempt, Classification("deleted", why))
        there = held_only or self._look().plan == plan_label(self._gang)
        if there and not held_only:
            self._delete()
        if there:
            self._hooks.log(f"{self._gang.name}{', held in its queue,' * held_only} is deleted: {why}")
        self._close(verdict)
        return True

    def _delete_held(self) -> bool:
        """At a version at which it was held, for its queue may let it go meanwhile."""
        observed, settings = self._look(), self._gang.settings
        if observed.state != "suspended" or observed.plan != plan_label(self._gang):
            return False
        at = resource(self._gang)
        return self._client.delete(at, settings.namespace, self._gang.name, observed.uid, observed.version)

    def _until_over(self) -> Classification:
        patience = Timeouts(self._gang.settings.start_timeout_s, self._gang.timeout_s, self._hooks.now())
        seen, until = False, self._gone_by()
        while True:
            # Read before the look: an object that a rival makes between the two has not vanished.
            placed = seen or self._attempts.placed(self._attempt.attempt)
            observed = self._look()
            if observed.state == "absent" and placed and not seen:
                return Classification("gone", "it vanished while no launch followed it")
            if observed.state == "absent" and not seen:
                made = self._make(late=self._hooks.now() > until)
                if made.cause == "gone":
                    return made
                if made.cause == "leaving":
                    self._tell(made)
                    self._pause()
                seen = made.cause == "starting"
                continue
            self._check_ours(observed)
            if not placed:
                self._attempts.place(self._attempt.attempt, observed.uid)
            verdict = self._verdict(observed)
            if verdict.cause == "leaving":
                self._tell(verdict)
                self._await(lambda: self._look().state == "leaving")  # not for ever: its finalizer may wait for a node
                verdict = Classification("deleted" if seen else "gone", "it was deleted")
            self._tell(verdict)
            self._tail.follow(observed)
            ending = verdict if verdict.cause in OVER else patience.spent(verdict, self._hooks.now())
            if ending is not None:
                return ending if ending.cause == "succeeded" else ending._replace(why=ending.why + self._tail.last())
            seen = True
            self._pause()

    def _verdict(self, observed: Observed) -> Classification:
        """What a look means in the light of those before it."""
        verdict = classify(observed)
        if observed.restarts > self.restarts:
            self._taken = ""
        self.restarts = max(self.restarts, observed.restarts)
        self._taken = next((pod.disrupted for pod in observed.pods if pod.disrupted), self._taken)
        if verdict.cause == "crashed" and self._taken and self._gang.settings.backend not in SELF_RESTARTING:
            return Classification("preempted", f"a pod was taken away before ({self._taken}); {verdict.why}")
        if verdict.cause not in OVER and not self._worthwhile(self.restarts):
            return Classification("stuck", f"{FRUITLESS} starts in a row left no newer {LEFT[self._gang.task]}")
        return verdict

    def _make(self, late: bool) -> Classification:
        """Put the gang into the cluster, where the last look saw none. `late`: what was to be gone should be by now.

        starting: it is there now. leaving: look again, for pods of this plan are there: earlier attempts', or this
        one's, which another launcher has just made. gone: it is not this launch's to make.
        """
        number, alive = self._gang.attempt, self._pods()
        if self._settled():
            return Classification("gone", "another launch settled how it ended")
        if late and any(pod.attempt == number for pod in alive):
            return Classification("gone", f"{_names(alive)} live on without their owner")
        if alive and not late:
            return Classification("leaving", f"{_names(alive)} are not over yet")
        self._fence(alive)
        try:
            obj = self._patiently(lambda: self._client.apply(render(self._gang)[0]))
        except Refused as refusal:
            if refusal.code != CONFLICT or late:
                raise
            return Classification("leaving", "another launcher has just made it, and its queue has changed it since")
        self._attempts.place(number, obj["metadata"]["uid"])
        if self._settled():  # since the pods were counted: whoever did that may have cleared away before this came
            self._delete(obj["metadata"]["uid"])
            return Classification("gone", "another launch settled how it ended")
        self._hooks.log(
            f"{self._gang.name}: {self._gang.nodes} x {self._gang.settings.instance_type} in namespace "
            f"{self._gang.settings.namespace}, by {self._gang.settings.backend}"
        )
        return Classification("starting", "it was made")

    def _settled(self) -> bool:
        """Whether it is on record how the attempt ended: then nothing of it may come into the cluster any more."""
        number = self._attempt.attempt
        return self._attempts.ending(number) is not None or not self._attempts.open(number)

    def _look(self) -> Observed:
        return self._patiently(lambda: observe(self._client, self._gang))

    def _delete(self, uid: str = "") -> None:
        """`uid`: only that one."""
        at = resource(self._gang)
        self._patiently(lambda: self._client.delete(at, self._gang.settings.namespace, self._gang.name, uid))

    def _await(self, left: Callable[[], object]) -> None:
        """Pause until nothing is left, or what is deleted should be gone."""
        until = self._gone_by()
        while left() and self._hooks.now() <= until:
            self._pause()

    def _await_pods(self) -> None:
        """Of every attempt up to this one."""
        self._await(self._pods)
        self._fence(self._pods())

    def _fence(self, alive: list[PodSeen]) -> None:
        if alive:  # on nodes that nobody reaches
            self._hooks.log(f"{_names(alive)}: no end of them. A later attempt fences them off")

    def _gone_by(self) -> float:
        """When what is deleted now should be gone."""
        return self._hooks.now() + self._gang.grace_s + GONE_WITHIN_S

    def _pods(self) -> list[PodSeen]:
        """Those that are not over, of all attempts up to this one."""
        pods = self._patiently(lambda: pods_of(self._client, self._gang, every_attempt=True))
        return [pod for pod in pods if pod.alive and pod.attempt <= self._gang.attempt]

    def _patiently(self, ask: Callable[[], T]) -> T:
        """What the API server answers, also when it is away for a while: the gang does not need it."""
        away_since = self._hooks.now()
        while True:
            try:
                return ask()
            except Unreachable as error:
                if self._hooks.now() - away_since > (AWAY_S if self._client.answered else NEVER_HEARD_S):
                    raise RuntimeError(f"{error} A gang that is there goes on; run this again to follow it.") from error
                why = f"for all we know; waiting for the API server ({error})"
                self._tell(Classification("running" if self._last_detail else "starting", why))
                self._pause()

    def _check_ours(self, observed: Observed) -> None:
        gang = self._gang
        if observed.state != "absent" and observed.plan != plan_label(gang):
            raise NotOurs(
                f"Namespace {gang.settings.namespace} has a {gang.settings.backend} {gang.name} that is none of this "
                f"{gang.task}'s. It is left as it is: see whose it is (kubectl describe), then remove it."
            )

    def _tell(self, verdict: Classification) -> None:
        message = f"{verdict.cause.replace('_', ' ')}: {verdict.why}"
        detail = message.partition(" to pod set ")[0]  # Kueue names one pod set after the other, several times a second
        if detail != self._last_detail:
            self._hooks.log(f"{self._gang.name} {message}")
        self._last_detail = detail

    def _pause(self) -> None:
        self._hooks.sleep(self._gang.settings.poll_s)

    def _close(self, verdict: Classification) -> None:
        over = {"closed_at": self._hooks.now(), "outcome": verdict.cause, "why": verdict.why[:500]}
        self._attempts.close(self._attempt.model_copy(update={**over, "restarts": self.restarts}))


def _names(pods: list[PodSeen]) -> str:
    return ", ".join(pod.name for pod in pods)


NO_PROGRESS_S = 300.0
"""For an image that can't be pulled and a claim that is not there: registries and people have bad minutes."""


class Timeouts:
    """Adds up the time of each state, from one look to the next; one that goes on too long is over."""

    def __init__(self, start_timeout_s: float, timeout_s: float, now: float) -> None:
        self._start_timeout_s, self._timeout_s, self._at = start_timeout_s, timeout_s, now
        self._cause = ""
        self._ran_s = self._idle_s = self._unmended_s = 0.0

    def spent(self, verdict: Classification, now: float) -> Classification | None:
        """The verdict that ends the attempt, once a state has lasted too long; None to go on.

        What the gang ran is summed over its restarts, of this launch alone.
        """
        passed, self._at, before = now - self._at, now, self._cause
        self._cause = verdict.cause
        self._ran_s += passed if before == "running" else 0.0
        self._idle_s = 0.0 if verdict.cause not in NOT_STARTED else self._idle_s + passed * (before in NOT_STARTED)
        unmended = verdict.cause in NO_PROGRESS
        self._unmended_s = self._unmended_s + passed * (before in NO_PROGRESS) if unmended else 0.0
        if self._ran_s > self._timeout_s:
            return Classification(
                "timed_out", f"it ran for {self._ran_s:.0f} s, longer than its time-out of {self._timeout_s:.0f} s"
            )
        if self._unmended_s > NO_PROGRESS_S:
            return verdict._replace(why=f"{verdict.why}, for {self._unmended_s:.0f} s")
        if self._idle_s > self._start_timeout_s:
            return verdict._replace(why=f"{verdict.why}, for {self._idle_s:.0f} s")
        return None


LEFT = {"training": "checkpoint", "evaluation": "answer"}
"""By task, what a start may leave."""
FRUITLESS = 10
"""Starts in a row that left nothing new, after which somebody has to look: a pod that fills its node's disk is evicted
like a pre-empted one, which is not counted."""


class GangProgress:
    """Counts the starts since something was new among what they leave, by names."""

    def __init__(self, left: Callable[[], set[str]]) -> None:
        self._there = left
        self._known, self._fruitless = self._there(), 0
        self._starts: int | None = None

    def started(self, starts: int) -> bool:
        """`starts` of the gang so far. False once too many of them in a row came to nothing."""
        if self._starts is not None and starts > self._starts:
            there = self._there()
            self._fruitless = 0 if there - self._known else self._fruitless + starts - self._starts
            self._known |= there
        self._starts = starts
        return self._fruitless < FRUITLESS
