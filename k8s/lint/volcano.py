"""Rules on Volcano's jobs, most of which only its webhook would refuse, where there is one."""

from __future__ import annotations

from k8s.lint.manifests import Manifests
from k8s.lint.outcomes import CRASHED, EVICTED, NOTICED, REFUSED, volcano_action
from k8s.lint.pods import Workload
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import rows, sub, text, whole

ACTIONS = frozenset(
    ["AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob", "CompleteJob"]
)
FEW_RETRIES = 20


def _jobs(seen: Manifests) -> list[Workload]:
    return [w for w in seen.trainings if w.kind == "VolcanoJob"]


@rule("error", fix="Set minAvailable to the number of pods of all tasks.")
def volcano_min_available(seen: Manifests) -> Hits:
    """Fewer, and a part of the gang starts and burns its devices while it waits for the rest; more, and it never
    starts. The API server takes either."""
    for job in _jobs(seen):
        least = job.spec.get("minAvailable")
        if least != job.size:
            yield f"{job.where} spec.minAvailable", f"{'not set' if least is None else least}, {job.size} pods"


@rule("error", fix="First policies: {exitCode: 64, action: AbortJob}, and the same for 65.")
def volcano_exit_64(seen: Manifests) -> Hits:
    """64 and 65 say never again. The first policy that matches wins, so PodFailed before them restarts a hopeless
    plan."""
    for job in _jobs(seen):
        for i, task in enumerate(rows(job.spec, "tasks")):
            for end in REFUSED:
                action = volcano_action(job.object, task, end)
                if action not in {"AbortJob", "TerminateJob"}:
                    yield f"{job.where} spec.policies", f"exit code {end.code} of task {i}: {action}"


@rule("error", fix="Add {event: PodEvicted, action: RestartJob} and {event: PodFailed, action: RestartJob}.")
def volcano_eviction(seen: Manifests) -> Hits:
    """Without a policy nothing happens (SyncJob), or the pod alone comes back; its peers hang in NCCL."""
    for job in _jobs(seen):
        for i, task in enumerate(rows(job.spec, "tasks")):
            for what, end in (("an eviction", EVICTED), ("exit code 143", NOTICED), ("a crash", CRASHED)):
                if (action := volcano_action(job.object, task, end)) != "RestartJob":
                    yield f"{job.where} spec.policies", f"{what} of task {i}: {action}"
                    break


@rule("error", fix="Set maxRetry to about 50.")
def volcano_max_retry(seen: Manifests) -> Hits:
    """RestartJob counts pre-emptions and crashes alike against maxRetry: on spot the default of 3 runs out within a
    run."""
    for job in _jobs(seen):
        retries = whole(job.spec, "maxRetry", default=3)
        if retries < FEW_RETRIES and any(p.may_be_spot for p in job.pods):
            yield f"{job.where} spec.maxRetry", f"{retries}"


@rule("error", fix=f"Write one of {', '.join(sorted(ACTIONS))}.")
def volcano_unknown_action(seen: Manifests) -> Hits:
    """The schema takes any text, and what the controller does not know does nothing."""
    for job in _jobs(seen):
        holders = [("spec", job.spec), *((f"spec.tasks[{i}]", t) for i, t in enumerate(rows(job.spec, "tasks")))]
        for path, holder in holders:
            for i, policy in enumerate(rows(holder, "policies")):
                if (action := text(policy, "action")) not in ACTIONS:
                    yield f"{job.where} {path}.policies[{i}].action", action or "none"


@rule("error", fix="Set schedulerName: volcano.")
def volcano_scheduler(seen: Manifests) -> Hits:
    """Another scheduler knows nothing of the PodGroup and places pods one by one."""
    for job in _jobs(seen):
        if (name := text(job.spec, "schedulerName")) != "volcano":
            yield f"{job.where} spec.schedulerName", name or "not set"


@rule("error", fix="Set plugins: {svc: [--publish-not-ready-addresses=true], env: []}.")
def volcano_plugins(seen: Manifests) -> Hits:
    """Without svc the pods have no host names to meet at, without env no rank (VC_TASK_INDEX)."""
    for job in _jobs(seen):
        missing = [name for name in ("svc", "env") if name not in sub(job.spec, "plugins")]
        if job.gang and missing:
            yield f"{job.where} spec.plugins", f"no {' and no '.join(missing)}"
