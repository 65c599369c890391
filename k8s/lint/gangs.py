"""Rules on a gang: how it starts, ends and starts again. A trainer's pod ends with 0 (done), 143 (run the gang
again), 64 or 65 (never again), else it crashed. "Seen": on real controllers."""

import re
from typing import NamedTuple

from k8s.lint.manifests import CAPACITY, Manifests, Pods
from k8s.lint.rules import Hits, Node, at, rows, rule, sub, text, texts, whole

RESTART = "RestartJobSetAndIgnoreMaxRestarts"
FEW_RETRIES = 20
_ENDS_WELL = re.compile(
    r"trap\s+(?P<q>['\"])(?:(?!(?P=q)).)*\bexit\s+0\b.*?(?P=q)"  # a handler that exits 0
    r"|(?:python|torchrun|accelerate)[^\n]*(?:\|\|\s*(?:true\b|:\s|:$|exit 0)|;\s*(?:true|exit\s+0)\b)"
    r"|(?<=\n)[ \t]*exit\s+0\s*\Z",  # whatever came before
    re.MULTILINE,
)
_KILLS = re.compile(r"\b(?:kill|pkill|killall)\b[^\n]*(?:KILL|-9)")
_TRAINS = r"(?:python3?|torchrun|accelerate|ray)\b"
_CHILD = re.compile(rf"[\n;&|]\s*{_TRAINS}|\b{_TRAINS}.*[\n;&|]")


class PodEnd(NamedTuple):
    """How a trainer's pod ends. `evicted`: with the condition DisruptionTarget."""

    what: str
    code: int
    evicted: bool = False


EVICTED, NOTICED, CRASHED = PodEnd("an eviction", 143, evicted=True), PodEnd("exit code 143", 143), PodEnd("a crash", 1)
NEVER_AGAIN = PodEnd("exit code 64", 64), PodEnd("exit code 65", 65)


def job_failure(job: Pods, end: PodEnd) -> tuple[str, str] | None:
    """Reason and message with which a Job fails at the first such end; None: the pod alone is replaced."""
    names = {"", *(text(container.node, "name") for container in job.containers)}
    for i, row in enumerate(rows(job.holder, "podFailurePolicy", "rules")):
        codes, listed = sub(row, "onExitCodes"), texts(row, "onExitCodes", "values")
        by_code = bool(listed) and text(codes, "containerName") in names
        by_code &= (str(end.code) in listed) == (text(codes, "operator") == "In")
        conditions = [text(condition, "type") for condition in rows(row, "onPodConditions")]
        if by_code or (end.evicted and "DisruptionTarget" in conditions):
            if text(row, "action") == "FailJob":
                return "PodFailurePolicy", f"failed with exit code {end.code} matching FailJob rule at index {i}"
            if text(row, "action") == "Ignore":
                return None
            break
    return ("BackoffLimitExceeded", "") if whole(job.holder, "backoffLimit", default=6) == 0 else None


def jobset_action(jobset: Node, job: Pods, end: PodEnd) -> str:
    """Of the first failure rule that matches, as JobSet 0.12 reads them; "" where the pod alone is replaced."""
    if (failed := job_failure(job, end)) is None:
        return ""
    policy = sub(jobset, "spec", "failurePolicy")
    for row in rows(policy, "rules"):
        wanted = texts(row, "onJobFailureReasons"), texts(row, "targetReplicatedJobs")
        patterns = texts(row, "onJobFailureMessagePatterns")
        if all(not list_ or value in list_ for list_, value in zip(wanted, (failed[0], job.name), strict=True)) and (
            not patterns or any(_found(pattern, failed[1]) for pattern in patterns)
        ):
            return text(row, "action")
    return "RestartJobSet" if policy else "FailJobSet"


def volcano_action(job: Node, task: Node, end: PodEnd) -> str:
    """Of the first policy that matches, the task's own before the job's; SyncJob where none does."""
    event = "PodEvicted" if end.evicted else "PodFailed"
    for row in [*rows(task, "policies"), *rows(job, "spec", "policies")]:
        events = {text(row, "event"), *texts(row, "events")}
        if events & {event, "*"} or whole(row, "exitCode", default=-1) == end.code:
            return text(row, "action")
    return "SyncJob"


def _found(pattern: str, message: str) -> bool:
    try:
        return re.search(pattern, message) is not None
    except re.error:
        return False  # the API server would refuse it


@rule("First: FailJobSet where the message matches 'exit code (64|65) '; FailJob on both in podFailurePolicy.")
def jobset_exit_64(seen: Manifests) -> Hits:
    """64 and 65 say never again (a bad plan, data that changed or was erased). Swallowed by the rule for pre-emption
    they restart for ever: the first rule that matches wins, and all come with the reason PodFailurePolicy."""
    for work in seen.trainings:
        for job in work.jobs:
            for end in NEVER_AGAIN:
                if work.kind == "Job" and job_failure(job, end) is None:
                    yield f"{job.held}.podFailurePolicy", f"{end.what}: the pod is tried again"
                elif work.kind == "JobSet" and (action := jobset_action(work.node, job, end)) != "FailJobSet":
                    yield f"{work.where} spec.failurePolicy", f"{end.what} of {job.name!r}: {action or 'replaced'}"


@rule(f"FailJob on DisruptionTarget and on 143, and a rule PodFailurePolicy -> {RESTART}, for that reason alone.")
def jobset_preemption(seen: Manifests) -> Hits:
    """On spot a pre-emption is the normal case: the gang must come back without a count that runs out, and the count
    (maxRestarts) is for crashes alone. A trainer that reads the notice itself leaves with 143 before it is evicted."""
    for work in seen.trainings:
        for job in work.jobs if work.kind == "JobSet" else []:
            actions = {end: jobset_action(work.node, job, end) for end in (EVICTED, NOTICED, CRASHED)}
            wrong = [
                end for end in (EVICTED, NOTICED) if actions[end] not in ({RESTART, ""} if end.evicted else {RESTART})
            ]
            if "Ignore" in actions[CRASHED] or (not actions[CRASHED] and job.count > 1):
                wrong.append(CRASHED)
            for end in wrong:
                yield f"{work.where} spec.failurePolicy", f"{end.what} of {job.name!r}: {actions[end] or 'replaced'}"


@rule("FailJob on DisruptionTarget in podFailurePolicy, backoffLimit 0, and restart the whole gang (JobSet, launcher).")
def eviction_replaces_one(seen: Manifests) -> Hits:
    """Seen: Ignore on DisruptionTarget, or a backoffLimit above 0, replaces the evicted index alone, and its peers hang
    in NCCL with all their devices. With backoffLimit 0 alone one eviction ends the Job like a crash."""
    for work in seen.trainings:
        for job in work.jobs:
            failed = job_failure(job, EVICTED)
            if failed is None and job.count > 1:
                policy = rows(job.holder, "podFailurePolicy", "rules")
                how = "podFailurePolicy ignores it" if policy else f"backoffLimit {job.holder.get('backoffLimit', 6)}"
                yield f"{job.held}.podFailurePolicy", f"a pre-empted pod is replaced alone: {how}"
            elif work.kind == "Job" and failed is not None and failed[0] != "PodFailurePolicy":
                yield f"{job.held}.podFailurePolicy", f"a pre-empted pod fails the Job with {failed[0]}"


@rule("First {exitCode: 64, action: AbortJob} and 65, then PodEvicted and PodFailed -> RestartJob.")
def volcano_policies(seen: Manifests) -> Hits:
    """The first policy that matches wins. Without one nothing happens (SyncJob), or the pod alone comes back and its
    peers hang in NCCL."""
    for work in (each for each in seen.trainings if each.kind == "VolcanoJob"):
        for task in work.pods:
            for end in (*NEVER_AGAIN, EVICTED, NOTICED, CRASHED):
                action = volcano_action(work.node, task.holder, end)
                if action not in (("AbortJob", "TerminateJob") if end in NEVER_AGAIN else ("RestartJob",)):
                    yield f"{work.where} spec.policies", f"{end.what} of task {task.name!r}: {action}"


@rule("Set maxRetry to about 50.")
def volcano_max_retry(seen: Manifests) -> Hits:
    """RestartJob counts pre-emptions and crashes alike against maxRetry: on spot the default of 3 runs out within a
    run."""
    for work in (each for each in seen.trainings if each.kind == "VolcanoJob"):
        retries = whole(work.spec, "maxRetry", default=3)
        if retries < FEW_RETRIES and any(p.selected.get(CAPACITY) != ["on-demand"] for p in work.pods):
            yield f"{work.where} spec.maxRetry", str(retries)


@rule("Set completionMode Indexed and completions = parallelism = nodes.")
def job_completions(seen: Manifests) -> Hits:
    """Seen: with parallelism 3 and completions 1 exactly one pod starts, and waits for two peers for ever. Only an
    indexed Job gives each pod a rank and a stable host name to meet at."""
    for job in (job for work in seen.trainings for job in work.jobs):
        pods, completions = whole(job.holder, "parallelism", default=1), at(job.holder, "completions")
        if isinstance(completions, int) and completions < pods:
            yield f"{job.held}.completions", f"completions {completions}, parallelism {pods}"
        if pods > 1 and (mode := text(job.holder, "completionMode")) != "Indexed":
            yield f"{job.held}.completionMode", mode or "NonIndexed (the default)"


@rule("Let the trainer's own exit code through: exec it, and leave 143 to say 'run me again'.")
def exits_0_when_preempted(seen: Manifests) -> Hits:
    """Seen: a trainer that checkpoints on SIGTERM and exits 0 counts as Succeeded, is never replaced, and its peers
    wait for ever. A shell as process 1 does not pass SIGTERM on: the trainer never hears of the pre-emption."""
    for work in seen.trainings:
        for place, script in work.scripts:
            if match := _ENDS_WELL.search(script):
                yield place, repr(match[0][:120])
        for container in (container for pods in work.all_pods for container in pods.containers):
            stop = "\n".join(texts(container.node, "lifecycle", "preStop", "exec", "command"))
            if match := _ENDS_WELL.search(stop) or _KILLS.search(stop):
                yield f"{container.where}.lifecycle.preStop", repr(match[0][:120])
            first, script = next(iter(texts(container.node, "command")), "").rpartition("/")[2], container.script
            if first in {"sh", "bash"} and _CHILD.search(script) and not re.search(r"\b(?:exec|trap)\b", script):
                yield f"{container.where}.command", f"{first} runs the trainer as a child, without exec or trap"


@rule("Pass --attempt <attempt> to pipeline.training.")
def unfenced(seen: Manifests) -> Hits:
    """A pod of an attempt that was given up may still run on a node that lost its network: without the attempt's
    number it writes into the checkpoints of the next one."""
    for place, script in (script for work in seen.trainings for script in work.scripts):
        if "pipeline.training" in script and "--attempt" not in script:
            yield place, "pipeline.training without --attempt"
