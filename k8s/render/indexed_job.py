"""A gang as an Indexed Job and its headless Service, for clusters without operators; JobSet takes the same Job.

Nothing here restarts or schedules the gang as one: each failure ends the Job, and the launcher opens a new attempt.
"""

from __future__ import annotations

import math

from k8s.gang import Gang
from k8s.render.pod import CONTAINER, Object, metadata, ranked_template
from pipeline.training.result import BLOCKED, NEVER_RETRY, PREEMPTED

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def training_job(gang: Gang) -> list[Object]:
    """The Job, then the Service that gives its pods their DNS names."""
    template = ranked_template(gang, f"{gang.name}-0.{gang.name}", rank=INDEX)
    template["spec"]["subdomain"] = gang.name
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(gang),
        "spec": {**job_spec(gang, template), "ttlSecondsAfterFinished": gang.settings.ttl_s},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(gang),
        "spec": {
            "clusterIP": "None",
            "selector": {"batch.kubernetes.io/job-name": gang.name},
            "publishNotReadyAddresses": True,  # peers look for node 0 before it is ready
        },
    }
    return [job, service]


def job_spec(gang: Gang, template: Object) -> Object:
    """`nodes` pods with an index each, of which the first to fail fails the Job, with the reason in its condition."""
    return {
        "completionMode": "Indexed",
        "completions": gang.nodes,
        "parallelism": gang.nodes,
        "backoffLimit": 0,  # a pod alone, started again, would wait for peers that know it no more
        # From the Job's start, pods pending: the launcher keeps the time, this is for when nobody does.
        "activeDeadlineSeconds": gang.timeout_s + math.ceil(gang.settings.start_timeout_s),
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": _exit(NEVER_RETRY, BLOCKED)},
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": _exit(PREEMPTED)},
            ]
        },
        # Rank 0 writes the result; a worker that stumbles on its way out changes nothing.
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": template,
    }


def _exit(*codes: int) -> Object:
    return {"containerName": CONTAINER, "operator": "In", "values": list(codes)}
