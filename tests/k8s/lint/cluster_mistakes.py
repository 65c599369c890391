"""Mistakes in what operators, queues and node pools make of a gang."""

from __future__ import annotations

from tests.k8s.lint.cases import GONE, Edit, Object, find
from tests.k8s.lint.edits import JOB, Mistake, jobset, pod, ray, static, volcano, without

NODES = "spec.template.spec"


def quota_of_pods(number: int) -> Edit:
    def cover(objects: list[Object]) -> None:
        group = find(objects, "ClusterQueue")["spec"]["resourceGroups"][0]
        group["coveredResources"].append("pods")
        for flavour in group["flavors"]:
            flavour["resources"].append({"name": "pods", "nominalQuota": number})

    return cover


def namespace_of_no_team(objects: list[Object]) -> None:
    objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "preference-tuning"}})
    find(objects, "ClusterQueue")["spec"]["namespaceSelector"] = {"matchLabels": {"team": "a"}}


OPERATORS = [
    volcano("minAvailable above the pods", "volcano-min-available", "spec.minAvailable", 4),
    volcano("minAvailable below", "volcano-min-available", "spec.minAvailable", 2),
    volcano("64 after PodFailed", "volcano-exit-64", "spec.policies",
            [{"event": "PodFailed", "action": "RestartJob"}, {"event": "PodEvicted", "action": "RestartJob"},
             {"exitCode": 64, "action": "AbortJob"}]),
    volcano("no policy for 64", "volcano-exit-64", "spec.policies.0", GONE),
    volcano("no policies (seed 002)", "volcano-eviction", "spec.policies", GONE),
    volcano("RestartPod", "volcano-eviction", "spec.policies.2.action", "RestartPod"),
    volcano("a task's policy before the job's", "volcano-eviction", "spec.tasks.0.policies",
            [{"event": "*", "action": "RestartTask"}]),
    volcano("maxRetry of 3 (seed 002)", "volcano-max-retry", "spec.maxRetry", GONE),
    volcano("a typo in an action", "volcano-unknown-action", "spec.policies.2.action", "RestartJobs"),
    volcano("the default scheduler", "volcano-scheduler", "spec.schedulerName", GONE),
    volcano("no svc plugin (seed 002)", "volcano-plugins", "spec.plugins", {"env": []}),
    volcano("no queue", "no-queue", "spec.queue", GONE),
    volcano("a queue that is not there (seed 002)", "queue-unknown", "spec.queue", "training-queue"),
    ray("no cluster", "ray-no-cluster", "spec.rayClusterSpec", GONE),
    ray("one GPU on the head (seed 003)", "ray-uneven-gpus",
        "spec.rayClusterSpec.headGroupSpec.template.spec.containers.0.resources", {"limits": {"nvidia.com/gpu": 1}}),
    ray("no GPUs on the workers", "ray-uneven-gpus",
        "spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.resources", {}),
    ray("the cluster stays", "ray-not-shut-down", "spec.shutdownAfterJobFinishes", False),
    ray("an autoscaled gang", "ray-elastic-gang", "spec.rayClusterSpec.enableInTreeAutoscaling", True),
    ray("from 0 to 2 workers", "ray-elastic-gang", "spec.rayClusterSpec.workerGroupSpecs.0.minReplicas", 0),
    ray("KubeRay retries", "ray-retries", "spec.backoffLimit", 2),
    ray("no entrypoint", "ray-no-entrypoint", "spec.entrypoint", GONE),
    jobset("three pods without a queue", "no-gang-scheduler", "metadata.labels", {"preference-tuning/iteration": "i"}),
    Mistake("one pod without a queue", "no-queue",
            without('metadata.labels."kueue.x-k8s.io/queue-name"', f"{JOB}.parallelism")),
    jobset("another namespace's queue", "queue-unknown", "metadata.namespace", "research"),
    static("LocalQueue", "a ClusterQueue that is not there", "queue-unknown", "spec.clusterQueue", "gpus"),
    static("ClusterQueue", "a flavour that is not there", "queue-unknown", "spec.resourceGroups.0.flavors.0.name", "s"),
    static("ClusterQueue", "EFA is not covered", "quota-too-small",
           "spec.resourceGroups.0.flavors.0.resources.3", GONE),
    static("ClusterQueue", "quota for two of three nodes", "quota-too-small",
           "spec.resourceGroups.0.flavors.0.resources.2.nominalQuota", 16),
    static("ClusterQueue", "the quota is another capacity's", "quota-too-small",
           "spec.resourceGroups.0.flavors.0.name", "on-demand"),
    static("ResourceFlavor", "a taint that nobody tolerates", "quota-too-small",
           "spec.nodeTaints", [{"key": "team", "value": "a", "effect": "NoSchedule"}], "spot"),
    Mistake("two pods of a gang of three", "quota-too-small", quota_of_pods(2)),
    Mistake("no pod left for the submitter", "quota-too-small", quota_of_pods(3), "rayjob"),
    pod("a disk that the queue does not cover", "quota-too-small",
        "containers.0.resources.requests.ephemeral-storage", "100Gi"),
    static("ClusterQueue", "a queue on hold", "queue-closed", "spec.stopPolicy", "HoldAndDrain"),
    static("LocalQueue", "a local queue on hold", "queue-closed", "spec.stopPolicy", "Hold"),
    static("ClusterQueue", "a queue for no namespace (the default)", "queue-closed", "spec.namespaceSelector", GONE),
    static("ClusterQueue", "a queue for another namespace", "queue-closed", "spec.namespaceSelector",
           {"matchLabels": {"kubernetes.io/metadata.name": "research"}}),
    static("ClusterQueue", "a queue for all others", "queue-closed", "spec.namespaceSelector.matchExpressions",
           [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["preference-tuning"]}]),
    Mistake("a namespace without the label that the queue wants", "queue-closed", namespace_of_no_team),
    static("ResourceFlavor", "a flavour of any node", "flavour-without-nodes", "spec", {}, "spot"),
    static("ResourceFlavor", "a flavour that names no capacity", "flavour-takes-others", "spec.nodeLabels",
           {}, "spot"),
    static("ResourceFlavor", "a flavour that no on-demand gang passes", "quota-too-small", "spec.nodeLabels",
           {"karpenter.sh/capacity-type": "on-demand"}, "spot"),
]  # fmt: skip

NODE_POOLS = [
    static("NodePool", "a name alone (seed 002)", "node-class-ref", f"{NODES}.nodeClassRef", {"name": "training"}),
    static("NodePool", "a class that is not there (seed 002)", "node-class-missing",
           f"{NODES}.nodeClassRef.name", "training-gpu-class"),
    static("EC2NodeClass", "no subnets", "node-class-incomplete", "spec.subnetSelectorTerms", GONE),
    static("EC2NodeClass", "no role", "node-class-incomplete", "spec.role", GONE),
    static("EC2NodeClass", "17 Gi of disk", "instance-store", "spec.instanceStorePolicy", GONE),
    static("NodePool", "the default consolidation", "consolidation", "spec.disruption", GONE),
    static("NodePool", "consolidation of the underused", "consolidation",
           "spec.disruption.consolidationPolicy", "WhenEmptyOrUnderutilized"),
    static("NodePool", "empty nodes stay", "consolidation", "spec.disruption.consolidateAfter", "Never"),
    static("NodePool", "no budgets (seed 002)", "drift-budget", "spec.disruption.budgets", GONE),
    static("NodePool", "a budget for drift alone", "drift-budget", "spec.disruption.budgets.0.reasons", ["Drifted"]),
    static("NodePool", "720 hours", "node-expiry", f"{NODES}.expireAfter", GONE),
    static("NodePool", "no limits (seed 002)", "pool-limits", "spec.limits", GONE),
    static("NodePool", "two zones with EFA (seed 002)", "several-zones", f"{NODES}.requirements.2.values",
           ["us-east-2a", "us-east-2b"]),
    static("NodePool", "any zone", "several-zones", f"{NODES}.requirements.2", GONE),
    static("NodePool", "no taint", "pool-untainted", f"{NODES}.taints", GONE),
    jobset("a label instead of a selector (seed 002)", "capacity-label",
           f'{JOB}.template.metadata.labels."karpenter.sh/capacity-type"', "spot"),
    pod("Spot, in a selector", "capacity-spelling", 'nodeSelector."karpenter.sh/capacity-type"', "Spot"),
    static("NodePool", "Spot, in a pool", "capacity-spelling", f"{NODES}.requirements.0.values", ["Spot"]),
    pod("everything is tolerated", "tolerates-everything", "tolerations", [{"operator": "Exists"}]),
    pod("disrupted nodes are tolerated", "tolerates-everything", "tolerations",
        [{"key": "karpenter.sh/disrupted", "operator": "Exists"}]),
    pod("terminating nodes are tolerated (seed 003)", "tolerates-everything", "tolerations",
        [{"key": "cloud.google.com/impending-node-termination", "operator": "Exists"}]),
    pod("any GPU", "instance-unselected", "nodeSelector", GONE),
    static("NodePool", "a class of no such group", "node-class-ref", f"{NODES}.nodeClassRef.group",
           "karpenter.k8s.aws.com"),
    static("NodePool", "another instance type", "no-pool", f"{NODES}.requirements.1.values", ["p5.48xlarge"]),
    static("NodePool", "another capacity", "no-pool", f"{NODES}.requirements.0.values", ["on-demand"]),
    static("NodePool", "all but that instance type", "no-pool", f"{NODES}.requirements.1",
           {"key": "node.kubernetes.io/instance-type", "operator": "NotIn", "values": ["p5en.48xlarge"]}),
    static("NodePool", "a taint that nobody tolerates", "no-pool", f"{NODES}.taints.0.key", "team"),
    static("NodePool", "limits for two nodes of three", "no-pool", 'spec.limits."nvidia.com/gpu"', 16),
    static("ClusterQueue", "quota for four nodes of three", "quota-over-pool",
           "spec.resourceGroups.0.flavors.0.resources.2.nominalQuota", 32),
    pod("a label that no pool gives", "no-pool", "nodeSelector.fabric", "efa"),
    pod("taints tolerated to another effect", "no-pool", "tolerations",
        [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]),
    static("ResourceFlavor", "a label that no pool gives", "flavour-without-pool",
           'spec.nodeLabels."preference-tuning/pool"', "research", "spot"),
    static("ResourceFlavor", "a label of nobody's", "flavour-without-pool", "spec.nodeLabels.fabric", "efa", "spot"),
]  # fmt: skip
