"""A gang as the objects to apply, by backend: a JobSet that Kueue admits, a Volcano Job, or a RayJob. `suspend` is not
among their fields: Kueue sets it, and an apply that owned it would stop a running gang."""

import math
import shlex

from k8s.gang import Gang
from k8s.pod import (
    CONTAINER,
    QUEUE,
    Object,
    affinity,
    command,
    container,
    labels,
    metadata,
    pod_template,
    ranked_template,
    shm_mib,
)
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


RANK = "metadata.annotations['volcano.sh/task-index']"
MAX_RETRY = 50
"""Pre-emptions count here: Volcano can't tell them from crashes. Its default of 3 is an afternoon on spot nodes."""


def training_vcjob(gang: Gang) -> Object:
    """One task of `nodes` pods."""
    template = ranked_template(gang, f"{gang.name}-{CONTAINER}-0.{gang.name}", rank=RANK)
    template["spec"]["activeDeadlineSeconds"] = gang.timeout_s  # the Job has none
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": metadata(gang),
        "spec": {
            "schedulerName": "volcano",
            "queue": gang.settings.queue,
            "minAvailable": gang.nodes,
            "maxRetry": MAX_RETRY,
            "ttlSecondsAfterFinished": gang.settings.ttl_s,
            # Rank and hosts, and a headless Service that names pods before they are ready.
            "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
            "policies": [  # the first that matches
                {"exitCode": NEVER_RETRY, "action": "AbortJob"},
                {"exitCode": BLOCKED, "action": "AbortJob"},
                {"event": "PodFailed", "action": "RestartJob"},
                {"event": "PodEvicted", "action": "RestartJob"},
            ],
            "tasks": [{"name": CONTAINER, "replicas": gang.nodes, "template": template}],
        },
    }


SUBMITTER = "submitter"
RAY = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""NeMo RL makes uv's environments itself, once for each node; Ray would for each task. And no telemetry."""


def training_rayjob(gang: Gang) -> Object:
    """Head and `nodes - 1` workers; the trainer runs on the head and its exit code is in `status.message`."""
    # Ray keeps its objects in /dev/shm, and on disk when they are not sure to fit.
    start = {"object-store-memory": str(shm_mib(gang) * 2**20 // 10 * 9)}
    workers = {
        "groupName": CONTAINER,
        "replicas": gang.nodes - 1,
        "minReplicas": gang.nodes - 1,
        "maxReplicas": gang.nodes - 1,
        "rayStartParams": start,
        "template": _node(gang),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata(gang, {QUEUE: gang.settings.queue}),
        "spec": {
            "entrypoint": shlex.join(command(gang.plan_path, gang.attempt)),
            "submissionMode": "K8sJobMode",
            # A second submission would find a new head and train there under an attempt that is over.
            "submitterConfig": {"backoffLimit": 0},
            "submitterPodTemplate": _submitter(gang),
            "backoffLimit": 0,
            # From the start of the cluster: the launcher keeps the time, this is for when nobody does.
            "activeDeadlineSeconds": gang.timeout_s + math.ceil(gang.settings.start_timeout_s),
            "shutdownAfterJobFinishes": True,  # or the nodes stay, paid for
            "ttlSecondsAfterFinished": 0,  # of the Ray cluster; the RayJob and the submitter's log remain
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0", **start}, "template": _node(gang)},
                "workerGroupSpecs": [workers] if gang.nodes > 1 else [],
            },
        },
    }


def _node(gang: Gang) -> Object:
    """KubeRay gives its container the command that starts Ray."""
    env = [{"name": name, "value": value} for name, value in RAY.items()]
    nodes = {"key": "ray.io/node-type", "operator": "In", "values": ["head", "worker"]}  # the submitter sits beside
    return pod_template(gang, container(gang, env=env), affinity(gang, nodes))


def _submitter(gang: Gang) -> Object:
    """A client of the head, on one of the gang's nodes: the image is there already, and it shares their fate."""
    trainer, resources = container(gang), {"cpu": "500m", "memory": "1Gi"}
    client = {
        "name": SUBMITTER,
        **{key: trainer[key] for key in ("image", "imagePullPolicy", "securityContext", "terminationMessagePolicy")},
        "resources": {"requests": resources, "limits": dict(resources)},
    }
    template = pod_template(gang, client, {})
    del template["spec"]["volumes"]
    return template


RENDERERS = {"jobset": training_jobset, "volcano": training_vcjob, "rayjob": training_rayjob}


def render(gang: Gang) -> list[Object]:
    """The objects of one attempt; deleting the first is enough."""
    return [RENDERERS[gang.settings.backend](gang)]
