"""What a look at a gang means: go on waiting, or over, and why. The first rule that matches wins. A crash of one pod
takes its peers down with 143, so the codes of all pods count."""

import re
from collections.abc import Callable, Container
from typing import Literal, NamedTuple

from k8s.observe import Observed, PodSeen
from k8s.pod import CONTAINER
from pipeline.training.result import BLOCKED, NEVER_RETRY, PREEMPTED

Cause = Literal[
    "succeeded", "queued", "no_queue", "over_quota", "forbidden", "no_capacity", "starting", "image", "volume",
    "running", "restarting", "leaving", "gone",
    "deleted", "preempted", "refused", "out_of_memory", "timed_out", "crashed", "stuck",
]  # fmt: skip
OVER: frozenset[Cause] = frozenset(
    ("succeeded", "gone", "deleted", "preempted", "refused", "out_of_memory", "timed_out", "crashed", "stuck")
)
"""Causes after which nothing more will happen by itself."""
NOT_STARTED: frozenset[Cause] = frozenset(
    ("queued", "no_queue", "over_quota", "forbidden", "no_capacity", "starting", "restarting", "image", "volume")
)
"""Causes that the recipe's `start_timeout_s` is for."""
NO_PROGRESS: frozenset[Cause] = frozenset(("image", "volume", "no_queue", "forbidden"))
"""Of those, what time alone seldom mends."""
UNPULLABLE = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
     "CreateContainerConfigError", "CreateContainerError")
)  # fmt: skip
_NO_QUEUE = re.compile(r"(?:Local|Cluster)Queue \S+ (?:doesn't|does not) exist")
_LIMITED = re.compile(r"didn't satisfy LimitRange constraints")
_NO_CLAIM = re.compile(r"persistentvolumeclaim .{0,80} not found")
_EXIT = re.compile(r"exit code (\d+)")
_DISRUPTED = re.compile(r"has condition DisruptionTarget|PodEvicted|[Pp]re-?empt|node .{0,80}(?:lost|shut|deleted)")


class Classification(NamedTuple):
    cause: Cause
    why: str


def classify(observed: Observed) -> Classification:
    if observed.state == "succeeded":
        return Classification("succeeded", "every pod ended with exit code 0")
    if observed.state == "absent":
        return Classification("deleted", "the object is gone")
    if observed.state == "leaving":
        return Classification("leaving", "it is being deleted")
    if observed.state == "failed":
        return _failure(observed)
    if (refusal := _refusal({pod.exit_code for pod in observed.pods})) is not None:
        return refusal
    if observed.state == "suspended":
        return _queued(observed)
    if observed.refusal is not None:
        return Classification("forbidden" if observed.refusal.lasting else "over_quota", observed.refusal.why)
    if (unpullable := _unpullable(observed)) is not None:
        return unpullable
    homeless = _first(observed, lambda pod: bool(_NO_CLAIM.search(pod.message)))
    if homeless is not None:
        return Classification("volume", f"pod {homeless.name}: {homeless.message}")
    unplaced = _first(observed, lambda pod: pod.waiting == "Unschedulable")
    if unplaced is not None:
        return Classification("no_capacity", f"pod {unplaced.name} finds no node: {unplaced.message}")
    if observed.state == "restarting":
        return Classification("restarting", f"the gang starts again (restart {observed.restarts})")
    if observed.state == "running":
        return Classification("running", f"{_pods(sum(pod.phase == 'Running' for pod in observed.pods))} running")
    if not observed.pods:
        return Classification("starting", "no pod yet")
    waiting = ", ".join(sorted({pod.waiting for pod in observed.pods if pod.waiting}))
    return Classification("starting", f"{_pods(len(observed.pods))} waiting" + (f" ({waiting})" if waiting else ""))


def _queued(observed: Observed) -> Classification:
    """Quota that never came is one thing; quota that came and was taken back, for want of nodes or for another gang, is
    waiting for what may come."""
    words = observed.detail or "it waits for quota"
    if observed.evicted == "PodsReadyTimeout":
        return Classification("no_capacity", f"it had quota, and its nodes did not come in time: {words}")
    if observed.evicted == "Preempted":
        return Classification("restarting", f"Kueue pre-empted it, and it waits for quota again: {words}")
    if _LIMITED.search(words):
        return Classification("forbidden", f"{words}. Ask for less, or raise that LimitRange")
    return Classification("no_queue" if _NO_QUEUE.search(words) else "queued", words)


def _refusal(codes: Container[int | None]) -> Classification | None:
    """The trainer's own word that no start of it will ever end well; None without one."""
    if NEVER_RETRY in codes:
        return Classification("refused", f"the trainer refuses the plan (exit code {NEVER_RETRY})")
    if BLOCKED in codes:
        return Classification("refused", f"an erasure took data of the training away (exit code {BLOCKED})")
    return None


def _failure(observed: Observed) -> Classification:
    quoted = {int(code) for code in _EXIT.findall(observed.detail)}
    # The pod that submits to Ray ends with 1 whatever the trainer ended with, which is quoted then; its nodes end with
    # codes of Ray's once KubeRay takes them down.
    submitters = tuple(pod for pod in observed.pods if pod.container != CONTAINER)
    trainers = set[int | None]() if submitters else {pod.exit_code for pod in observed.pods} - {None, 0}
    codes = trainers | quoted or {pod.exit_code for pod in observed.pods} - {None, 0}
    detail = observed.detail or "nothing was said of it"
    if (refusal := _refusal(codes | quoted)) is not None:
        return refusal
    starved = _first(observed, lambda pod: pod.ended == "OOMKilled")
    if starved is not None:
        return Classification("out_of_memory", f"pod {starved.name} took more memory than its limit")
    if (unpullable := _unpullable(observed)) is not None:
        return unpullable
    if "DeadlineExceeded" in detail or _first(observed, lambda pod: pod.ended == "DeadlineExceeded"):
        return Classification("timed_out", detail)
    disrupted = _first(observed, lambda pod: bool(pod.disrupted))
    if disrupted is not None:
        return Classification("preempted", f"pod {disrupted.name} was taken away ({disrupted.disrupted})")
    if codes == {PREEMPTED} or (not codes and _DISRUPTED.search(detail)):  # a crash's peers end with 143 too
        return Classification("preempted", detail)
    failed = next((pod for pod in submitters or observed.pods if pod.exit_code not in (None, 0)), None)
    ended = f"pod {failed.name} ended with exit code {failed.exit_code}; " if failed else ""
    return Classification("crashed", ended + detail)


def _unpullable(observed: Observed) -> Classification | None:
    pod = _first(observed, lambda pod: pod.waiting in UNPULLABLE)
    return pod and Classification("image", f"pod {pod.name}: {pod.waiting}: {pod.message}")


def _first(observed: Observed, test: Callable[[PodSeen], bool]) -> PodSeen | None:
    return next(filter(test, observed.pods), None)


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"
