"""A gang as a Volcano Job: all pods or none, all again when one fails. With Karpenter Volcano must run without its
`enqueue` action, which holds back the pods that nodes are bought for (volcano#3910)."""

from k8s.gang import Gang
from k8s.render.pod import CONTAINER, Object, metadata, ranked_template
from pipeline.training.result import BLOCKED, NEVER_RETRY

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
