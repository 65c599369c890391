"""Rules on how a gang ends and begins again: pre-emption, exit codes, deadlines, what is left behind.

The contract of a trainer's pod: 0 done, 143 run the gang again and do not count it, 64 never again, else a crash.
"Seen": on a real kube-apiserver with the controllers of Job, JobSet and Kueue.
"""

from __future__ import annotations

import re

from k8s.lint.manifests import Manifests
from k8s.lint.outcomes import CRASHED, EVICTED, NOTICED, REFUSED, REPLACED, failure, jobset_action
from k8s.lint.pods import namespace, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import labels, quantity, rows, text, texts, whole

SPOT_NOTICE_S = 120
LONGEST_GRACE_S = 110
GKE_NOTICE_S = 30
GKE_LONGEST_GRACE_S = 15
DEFAULT_GRACE_S = 30
RESTART = "RestartJobSetAndIgnoreMaxRestarts"

_ENDS_WELL = re.compile(
    r"trap\s+(?P<q>['\"])(?:(?!(?P=q)).)*\bexit\s+0\b.*?(?P=q)"  # a handler that exits 0
    r"|(?:python|torchrun|accelerate)[^\n]*(?:\|\|\s*(?:true\b|:\s|:$|exit 0)|;\s*(?:true|exit\s+0)\b)"
    r"|(?<=\n)[ \t]*exit\s+0\s*\Z",  # whatever came before
    re.MULTILINE,
)


@rule("error", fix="Set completionMode Indexed and completions = parallelism = nodes.")
def job_completions(seen: Manifests) -> Hits:
    """Seen: with parallelism 3 and completions 1 exactly one pod starts, and it waits for two peers for ever."""
    for workload in seen.trainings:
        for job in workload.jobs:
            completions = job.spec.get("completions")
            if isinstance(completions, int) and completions < job.parallelism:
                yield f"{job.where}.completions", f"completions {completions}, parallelism {job.parallelism}"


@rule("error", fix="Set completionMode: Indexed.")
def job_not_indexed(seen: Manifests) -> Hits:
    """Only an indexed Job gives each pod a rank (JOB_COMPLETION_INDEX) and a stable host name to meet at."""
    for workload in seen.gangs:
        for job in workload.jobs:
            if job.parallelism > 1 and text(job.spec, "completionMode") != "Indexed":
                yield f"{job.where}.completionMode", f"{text(job.spec, 'completionMode') or 'NonIndexed (the default)'}"


@rule("error", fix="Set restartPolicy: Never on the pod template.")
def restart_policy(seen: Manifests) -> Hits:
    """The kubelet restarts the container in its place: no failure policy ever sees the exit code (the API refuses one
    beside OnFailure), and the peers keep a communicator with a dead rank."""
    for workload in seen.trainings:
        for pods in workload.pods if not workload.kind.startswith("Ray") else []:
            if (policy := text(pods.spec, "restartPolicy")) != "Never":
                yield f"{pods.where}.restartPolicy", policy or "not set"


@rule(
    "error",
    fix="Add a podFailurePolicy with FailJob on DisruptionTarget, and let the launcher or a JobSet start again.",
)
def eviction_fails_job(seen: Manifests) -> Hits:
    """Seen: with backoffLimit 0 and no podFailurePolicy one eviction ends the whole Job, and nothing tells the
    launcher that it was an eviction and no crash."""
    for workload in seen.trainings:
        for job in workload.jobs if workload.kind == "Job" else []:
            if (failed := failure(job, EVICTED)) and failed.reason != "PodFailurePolicy":
                yield f"{job.where}.podFailurePolicy", f"a pre-empted pod fails the Job with {failed.reason}"


@rule(
    "error", fix="Use FailJob on DisruptionTarget with backoffLimit 0, and restart the whole gang (JobSet, launcher)."
)
def eviction_replaces_one(seen: Manifests) -> Hits:
    """Seen: Ignore on DisruptionTarget, or a backoffLimit above 0, replaces the evicted index alone. Its peers hold an
    NCCL communicator with the dead rank and hang until their time-out, with all their devices."""
    for workload in seen.gangs:
        for job in workload.jobs:
            if job.pods.count > 1 and failure(job, EVICTED) is None:
                rules = rows(job.spec, "podFailurePolicy", "rules")
                how = "podFailurePolicy ignores it" if rules else f"backoffLimit {job.spec.get('backoffLimit', 6)}"
                yield f"{job.where}.podFailurePolicy", f"a pre-empted pod is replaced alone: {how}"


@rule("error", fix=f"podFailurePolicy FailJob on DisruptionTarget, and a rule PodFailurePolicy -> {RESTART}.")
def jobset_preemption(seen: Manifests) -> Hits:
    """On spot a pre-emption is the normal case: the gang must come back, without a count that runs out (maxRestarts
    then bounds real crashes alone)."""
    for workload in seen.trainings:
        for job in workload.jobs if workload.kind == "JobSet" else []:
            action = jobset_action(workload.object, job, EVICTED)
            if action not in {RESTART, REPLACED}:
                yield f"{workload.where} spec.failurePolicy", f"an evicted pod of {job.name!r}: {action}"


@rule("error", fix=f"podFailurePolicy FailJob on exit code 143, and a rule PodFailurePolicy -> {RESTART}.")
def jobset_exit_143(seen: Manifests) -> Hits:
    """A trainer that reads the interruption notice itself leaves with 143 before any eviction is marked: run me again,
    and do not count it."""
    for workload in seen.trainings:
        for job in workload.jobs if workload.kind == "JobSet" else []:
            if (action := jobset_action(workload.object, job, NOTICED)) != RESTART:
                yield f"{workload.where} spec.failurePolicy", f"exit code 143 of {job.name!r}: {action}"


@rule(
    "error",
    fix="First rule: FailJobSet where the message matches 'exit code (64|65) '; FailJob on both in podFailurePolicy.",
)
def jobset_exit_64(seen: Manifests) -> Hits:
    """64 and 65 say never again (a bad plan, data that changed or was erased). Swallowed by the rule for pre-emption
    they restart for ever: the first failure rule that matches wins, and all come with the reason PodFailurePolicy."""
    for workload in seen.trainings:
        for job in workload.jobs if workload.kind == "JobSet" else []:
            for end in REFUSED:
                if (action := jobset_action(workload.object, job, end)) != "FailJobSet":
                    yield f"{workload.where} spec.failurePolicy", f"exit code {end.code} of {job.name!r}: {action}"


@rule("error", fix="FailJob on exit codes 64 and 65 in podFailurePolicy, or backoffLimit 0.")
def job_exit_64(seen: Manifests) -> Hits:
    """A plan that cannot train fails again at each of the backoff's tries, on all devices."""
    for workload in seen.trainings:
        for job in workload.jobs if workload.kind == "Job" else []:
            for end in REFUSED:
                if failure(job, end) is None:
                    yield f"{job.where}.podFailurePolicy", f"after exit code {end.code} the pod is tried again"


@rule("error", fix=f"Limit {RESTART} to onJobFailureReasons [PodFailurePolicy], and set maxRestarts.")
def jobset_crash(seen: Manifests) -> Hits:
    """A crash that is not counted restarts for ever; one that is replaced alone leaves its peers hanging."""
    for workload in seen.trainings:
        for job in workload.jobs if workload.kind == "JobSet" else []:
            action = jobset_action(workload.object, job, CRASHED)
            if "IgnoreMaxRestarts" in action or (action == REPLACED and workload.gang):
                yield f"{workload.where} spec.failurePolicy", f"exit code 1 of {job.name!r}: {action}"


@rule("warning", fix='Add successPolicy: {rules: [{succeededIndexes: "0"}]} to the Job.')
def success_policy(seen: Manifests) -> Hits:
    """Seen: rank 0 has written the result and exits 0, a worker stumbles on its way out: the Job counts as failed."""
    for workload in seen.gangs:
        for job in workload.jobs:
            indexed = job.parallelism > 1 and text(job.spec, "completionMode") == "Indexed"
            if indexed and not rows(job.spec, "successPolicy", "rules"):
                yield f"{job.where}.successPolicy", "not set"


@rule("error", fix="Let the trainer's own exit code through: exec it, and leave 143 to say 'run me again'.")
def exits_0_when_preempted(seen: Manifests) -> Hits:
    """Seen: a trainer that checkpoints on SIGTERM and exits 0 counts as Succeeded, is never replaced, and its peers
    wait for ever."""
    for workload in seen.trainings:
        for container in workload.commands:
            stop = "\n".join(texts(container.node, "lifecycle", "preStop", "exec", "command"))
            hook = f"{container.where}.lifecycle.preStop"
            for place, script in ((container.command, container.script), (hook, stop)):
                if match := _ENDS_WELL.search(script):
                    yield place, repr(match[0][:120])
                elif place == hook and re.search(r"\b(?:kill|pkill|killall)\b[^\n]*(?:KILL|-9)", script):
                    yield place, f"the hook kills the trainer: {script[:120]!r}"


@rule("error", fix="Set terminationGracePeriodSeconds to the recipe's training.grace_s (100).")
def no_grace(seen: Manifests) -> Hits:
    """The default is 30 s, and a checkpoint of an 8B model alone takes 21 s (seed 003's log): what has been trained
    since the last one is lost at each pre-emption."""
    for pods in seen.trainer_pods:
        if not isinstance(pods.spec.get("terminationGracePeriodSeconds"), int):
            yield f"{pods.where}.terminationGracePeriodSeconds", f"not set: {DEFAULT_GRACE_S} s"


@rule("error", fix=f"Set it to at most {LONGEST_GRACE_S}, on GKE to {GKE_LONGEST_GRACE_S}.")
def grace_over_notice(seen: Manifests) -> Hits:
    """A spot node is gone 120 s after its notice, of which the drain takes some; one of GKE after 30 s, of which it
    keeps half for the pods of the system: a longer grace is not given."""
    for pods in seen.trainer_pods:
        grace = whole(pods.spec, "terminationGracePeriodSeconds")
        longest, notice = longest_grace(on_gke=pods.on_gke)
        if pods.may_be_spot and grace > longest:
            yield f"{pods.where}.terminationGracePeriodSeconds", f"{grace} s of a notice of {notice} s"


def longest_grace(*, on_gke: bool) -> tuple[int, int]:
    """What a pod is given of a spot node's notice, and the notice, both in seconds."""
    return (GKE_LONGEST_GRACE_S, GKE_NOTICE_S) if on_gke else (LONGEST_GRACE_S, SPOT_NOTICE_S)


@rule("warning", fix="Set activeDeadlineSeconds (of the Job, the pod or the RayJob).")
def no_deadline(seen: Manifests) -> Hits:
    """A gang that hangs without a deadline burns its devices until somebody looks."""
    for workload in seen.trainings:
        holders = [workload.spec, *(p.spec for p in workload.pods), *(job.spec for job in workload.jobs)]
        if workload.kind != "RayCluster" and not any(whole(h, "activeDeadlineSeconds") for h in holders):
            yield f"{workload.where} spec", "no activeDeadlineSeconds anywhere"


@rule("warning", fix="Set ttlSecondsAfterFinished (a day).")
def no_ttl(seen: Manifests) -> Hits:
    """Finished gangs stay for ever, with their pods and their records in etcd."""
    for workload in seen.trainings:
        if workload.kind != "RayCluster" and workload.spec.get("ttlSecondsAfterFinished") is None:
            yield f"{workload.where} spec.ttlSecondsAfterFinished", "not set"


@rule("error", fix="Remove the annotation; block voluntary disruption at the NodePool (WhenEmpty, budgets).")
def do_not_disrupt(seen: Manifests) -> Hits:
    """Karpenter does not evict such pods gracefully at a spot interruption either
    (aws/karpenter-provider-aws#8276): no SIGTERM, no checkpoint."""
    for pods in seen.trainer_pods:
        if (
            pods.may_be_spot
            and labels(pods.metadata, "annotations").get("karpenter.sh/do-not-disrupt", "").lower() == "true"
        ):
            yield pods.where, "annotation karpenter.sh/do-not-disrupt: true on pods that may run on spot"


@rule("error", fix="Remove the budget: the gang's own policy handles evictions.")
def budget_blocks_drain(seen: Manifests) -> Hits:
    """Seen: the eviction is answered with 429, the drain never delivers SIGTERM, and the spot node takes the pod with
    it when its time is up."""
    for budget in seen.of("PodDisruptionBudget"):
        chosen = labels(budget, "spec", "selector", "matchLabels").items()
        near = [w for w in seen.workloads if namespace(w.object) == namespace(budget)]
        covered = sum(p.count for w in near for p in w.pods if chosen <= p.labels.items())
        most, least = text(budget, "spec", "maxUnavailable"), text(budget, "spec", "minAvailable")
        if most in {"0", "0%"}:
            yield where(budget, "spec.maxUnavailable"), f"{most}: no pod may ever be evicted"
        elif least == "100%" or 0 < covered <= quantity(least):
            yield where(budget, "spec.minAvailable"), f"{least} of {covered or 'all'} pods: none may ever be evicted"
