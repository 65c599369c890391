"""A gang as a JobSet that Kueue admits: all pods or none, all afresh when one is lost. Pre-emptions restart it without
counting, crashes at most `max_restarts` times, and what no retry mends fails at once."""

import math

from k8s.gang import Gang
from k8s.render.pod import CONTAINER, QUEUE, Object, labels, metadata, ranked_template
from pipeline.training.result import BLOCKED, NEVER_RETRY, PREEMPTED

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def training_jobset(gang: Gang) -> Object:
    """One replicated job of `nodes` indexed pods; JobSet makes their headless Service, by its own name."""
    template = ranked_template(gang, f"{gang.name}-{CONTAINER}-0-0.{gang.name}", rank=INDEX)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(gang, {QUEUE: gang.settings.queue}),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": gang.name, "publishNotReadyAddresses": True},
            "ttlSecondsAfterFinished": gang.settings.ttl_s,
            "failurePolicy": {
                "maxRestarts": gang.settings.max_restarts,
                # The first that matches; a failure that none matches restarts the gang and is counted.
                "rules": [
                    {
                        "name": "neverRetry",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                        "onJobFailureMessagePatterns": [f"exit code ({NEVER_RETRY}|{BLOCKED}) "],
                    },
                    {
                        "name": "preempted",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    },
                    {"name": "timedOut", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
                ],
            },
            "replicatedJobs": [
                {
                    "name": CONTAINER,
                    "replicas": 1,
                    "template": {"metadata": {"labels": labels(gang)}, "spec": job_spec(gang, template)},
                }
            ],
        },
    }


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
