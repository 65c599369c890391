"""A gang as a RayJob (KubeRay), for NeMo RL, which places its own processes on a Ray cluster. The head is one of the
`nodes`. KubeRay would replace lost pods one by one, so nothing is retried here: the launcher opens a new attempt."""

import math
import shlex

from k8s.gang import Gang
from k8s.render.placement import affinity
from k8s.render.pod import CONTAINER, QUEUE, Object, command, container, metadata, pod_template, shm_mib

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
