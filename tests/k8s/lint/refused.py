"""Wrong manifests by kind: one field of an object of an overlay, or of a gang rendered for it, that an API server, a
webhook or a controller refuses, or that makes it do something else than what is written."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.k8s.lint.cases import GONE

JOB = "spec.replicatedJobs.0.template.spec"
POD = f"{JOB}.template.spec"
BOX = f"{POD}.containers.0"
TASK = "spec.tasks.0.template.spec"
NODE = "spec.template.spec"
HEAD = "spec.rayClusterSpec.headGroupSpec.template.spec"
RULE = "spec.rules.0"
GROUP = "spec.resourceGroups.0"


class Wrong(NamedTuple):
    kind: str
    what: str
    path: str
    value: Any
    name: str = ""
    """Of the object; empty: the first of the kind."""
    backend: str = "jobset"


def volcano(what: str, path: str, value: Any) -> Wrong:
    return Wrong("Job", what, path, value, backend="volcano")


def ray(what: str, path: str, value: Any) -> Wrong:
    return Wrong("RayJob", what, path, value, backend="rayjob")


def indexed(what: str, path: str, value: Any) -> Wrong:
    return Wrong("Job", what, path, value, backend="job")


POOL = [
    Wrong("NodePool", "In without values", f"{NODE}.requirements.0.values", [], "training-spot"),
    Wrong("NodePool", "Gt of a word", f"{NODE}.requirements.0",
          {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["many"]}, "training-spot"),
    Wrong("NodePool", "a label of a restricted domain", 'spec.template.metadata.labels."kubernetes.io/hostname"', "a",
          "training-spot"),
    Wrong("NodePool", "expireAfter where v1beta1 had it", "spec.disruption.expireAfter", "720h", "training-spot"),
    Wrong("NodePool", "replicas beside a weight", "spec.replicas", 2, "training-spot"),
    Wrong("NodePool", "a class of another group", f"{NODE}.nodeClassRef.group", "karpenter.k8s.aws/v1"),
    Wrong("NodePool", "weight 0", "spec.weight", 0, "training-spot"),
    Wrong("NodePool", "a budget of 150%", "spec.disruption.budgets", [{"nodes": "150%"}], "training-spot"),
    Wrong("NodePool", "a schedule without duration", "spec.disruption.budgets",
          [{"nodes": "0", "schedule": "@daily"}], "training-spot"),
    Wrong("NodePool", "limits of no quantity", 'spec.limits."nvidia.com/gpu"', "24 GPUs", "training-spot"),
    Wrong("NodePool", "a taint of no effect", f"{NODE}.taints.0.effect", "NoSchedul", "training-spot"),
    Wrong("NodePool", "a policy of no such name", "spec.disruption.consolidationPolicy", "WhenUnderutilized"),
    Wrong("NodePool", "minValues above the values", f"{NODE}.requirements.0",
          {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5en.48xlarge"], "minValues": 2},
          "training-spot"),
    Wrong("NodePool", "a grace of no duration", f"{NODE}.terminationGracePeriod", "two minutes", "training-spot"),
    Wrong("EC2NodeClass", "role beside instanceProfile", "spec.instanceProfile", "nodes"),
    Wrong("EC2NodeClass", "an AMI's family that is not", "spec.amiSelectorTerms.0.alias", "ubuntu@v1"),
    Wrong("EC2NodeClass", "a root disk of no quantity", "spec.blockDeviceMappings",
          [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "200 GB"}}]),
    Wrong("EC2NodeClass", "a subnet by id and tags", "spec.subnetSelectorTerms",
          [{"id": "subnet-0123abcd", "tags": {"a": "b"}}]),
    Wrong("EC2NodeClass", "metadata hops below 1", "spec.metadataOptions", {"httpPutResponseHopLimit": 0}),
    Wrong("EC2NodeClass", "a tag of the cluster's", "spec.tags", {"kubernetes.io/cluster/x": "owned"}),
]  # fmt: skip
KUEUE = [
    Wrong("ClusterQueue", "a flavour that lacks a resource", f"{GROUP}.flavors.0.resources.0", GONE),
    Wrong("ClusterQueue", "flavours' resources in another order", f"{GROUP}.coveredResources",
          ["memory", "cpu", "nvidia.com/gpu", "vpc.amazonaws.com/efa", "pods"]),
    Wrong("ClusterQueue", "a quota of no quantity", f"{GROUP}.flavors.0.resources.1.nominalQuota", "6144 GiB"),
    Wrong("ClusterQueue", "a negative quota", f"{GROUP}.flavors.0.resources.2.nominalQuota", "-8"),
    Wrong("ClusterQueue", "borrowing without a cohort", f"{GROUP}.flavors.0.resources.2.borrowingLimit", "8"),
    Wrong("ClusterQueue", "a strategy of no such name", "spec.queueingStrategy", "FIFO"),
    Wrong("ClusterQueue", "the field's name of v1beta1", "spec.cohort", "gpus"),
    Wrong("ClusterQueue", "preemption without a cohort", "spec.preemption.reclaimWithinCohort", "Always "),
    Wrong("ClusterQueue", "a flavour twice", f"{GROUP}.flavors.1.name", "training"),
    Wrong("LocalQueue", "no ClusterQueue", "spec", {}),
    Wrong("LocalQueue", "a queue of no such name", "spec.clusterQueue", "Training"),
    Wrong("ResourceFlavor", "a label's value of 64 characters", 'spec.nodeLabels."preference-tuning/pool"', "a" * 64,
          "training"),
    Wrong("ResourceFlavor", "a taint without an effect", "spec.nodeTaints.0.effect", GONE, "training"),
    Wrong("ResourceFlavor", "labels under another name", "spec.nodeSelector", {"a": "b"}),
]  # fmt: skip
GANGS = [
    Wrong("JobSet", "an unknown field", "spec.replicatedJob", []),
    Wrong("JobSet", "a misspelt field of the pod", f"{POD}.toleration", []),
    Wrong("JobSet", "a replicated job in capitals", "spec.replicatedJobs.0.name", "Trainer"),
    Wrong("JobSet", "a failure policy for a job that is not there",
          "spec.failurePolicy.rules.0.targetReplicatedJobs", ["workers"]),
    Wrong("JobSet", "a rule's name with a dash", "spec.failurePolicy.rules.0.name", "no-retry"),
    Wrong("JobSet", "memory of 1600 GB", f"{BOX}.resources.limits.memory", "1600 GB"),
    Wrong("JobSet", "half a GPU", f'{BOX}.resources.limits."nvidia.com/gpu"', "500m"),
    Wrong("JobSet", "a request above its limit", f"{BOX}.resources.requests.cpu", "190"),
    Wrong("JobSet", "a negative grace", f"{POD}.terminationGracePeriodSeconds", -1),
    Wrong("JobSet", "a mount of no volume", f"{BOX}.volumeMounts.0.name", "checkpoints"),
    Wrong("JobSet", "a volume twice", f"{POD}.volumes.1.name", "data"),
    Wrong("JobSet", "a port beyond 65535", f"{BOX}.ports", [{"containerPort": 70000}]),
    Wrong("JobSet", "an environment of numbers", f"{BOX}.env.0.value", 1),
    Wrong("JobSet", "no image", f"{BOX}.image", GONE),
    Wrong("JobSet", "a toleration with a value for Exists", f"{POD}.tolerations.0.value", "true"),
    Wrong("JobSet", "an affinity without a topology", f"{POD}.affinity.podAntiAffinity"
          ".requiredDuringSchedulingIgnoredDuringExecution.0.topologyKey", GONE),
    Wrong("JobSet", "a volume of two kinds", f"{POD}.volumes.1.persistentVolumeClaim", {"claimName": "checkpoints"}),
    Wrong("JobSet", "a Secret's key without the Secret", f"{BOX}.env.0",
          {"name": "A", "valueFrom": {"secretKeyRef": {"key": "b"}}}),
    Wrong("JobSet", "a variable of no field", f"{BOX}.env.0",
          {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.label"}}}),
    Wrong("JobSet", "parallelism in quotes", f"{JOB}.parallelism", "3"),
    indexed("a success policy of no such index", "spec.successPolicy.rules.0.succeededIndexes", "9"),
    indexed("a failure policy beside OnFailure", "spec.template.spec.restartPolicy", "OnFailure"),
    indexed("an exit code 0 that fails", "spec.podFailurePolicy.rules.0",
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}),
    indexed("a manual selector", "spec.selector", {"matchLabels": {"app": "grpo"}}),
    volcano("an unknown field", "spec.minMember", 3),
    volcano("an unknown field of the pod", f"{TASK}.gpus", 8),
    volcano("no tasks", "spec.tasks", []),
    volcano("an event of no such name", "spec.policies.1.event", "PodEvict"),
    volcano("an exit code and an event", "spec.policies.0.event", "PodFailed"),
    volcano("a task without replicas", "spec.tasks.0.replicas", -1),
    ray("an unknown field", "spec.rayCluster", {}),
    ray("a head without containers", f"{HEAD}.containers", []),
    ray("a mode of submission of no such name", "spec.submissionMode", "K8SJob"),
    ray("a group without a name", "spec.rayClusterSpec.workerGroupSpecs.0.groupName", GONE),
    ray("workers in quotes", "spec.rayClusterSpec.workerGroupSpecs.0.replicas", "2"),
    ray("suspend without shutdown", "spec.shutdownAfterJobFinishes", False),
]  # fmt: skip
SERVING = [
    Wrong("HTTPRoute", "a request shorter than its backend", f"{RULE}.timeouts",
          {"request": "10s", "backendRequest": "60s"}),
    Wrong("HTTPRoute", "a timeout of no duration", f"{RULE}.timeouts", {"request": "five minutes"}),
    Wrong("HTTPRoute", "a negative weight", f"{RULE}.backendRefs.0.weight", -1),
    Wrong("HTTPRoute", "a weight of 0.9", f"{RULE}.backendRefs.0.weight", 0.9),
    Wrong("HTTPRoute", "no port", f"{RULE}.backendRefs.0.port", GONE),
    Wrong("HTTPRoute", "a path without its slash", f"{RULE}.matches.0.path.value", "v1/chat"),
    Wrong("HTTPRoute", "a host with a port", "spec.hostnames", ["model.example.com:443"]),
    Wrong("HTTPRoute", "redirect beside backends", f"{RULE}.filters",
          [{"type": "RequestRedirect", "requestRedirect": {"hostname": "example.com"}}]),
    Wrong("ScaledObject", "min over max", "spec.minReplicaCount", 20),
    Wrong("ScaledObject", "idle not below min", "spec.idleReplicaCount", 3),
    Wrong("ScaledObject", "a threshold as a number", "spec.triggers.0.metadata.threshold", 8),
    Wrong("ScaledObject", "no triggers", "spec.triggers", GONE),
    Wrong("ScaledObject", "an empty list of triggers", "spec.triggers", []),
    Wrong("ScaledObject", "a target that is not there", "spec.scaleTargetRef.name", "judges"),
    Wrong("ScaledObject", "a fallback of fewer than 0", "spec.fallback.replicas", -3),
    Wrong("InferenceService", "an unknown field", "spec.predictor.replicas", 3),
    Wrong("InferenceService", "replicas in quotes", "spec.predictor.minReplicas", "3"),
    Wrong("InferenceService", "memory of no quantity", "spec.predictor.containers.0.resources.limits.memory", "96 Gi"),
    Wrong("InferenceService", "no predictor", "spec.predictor", GONE),
    Wrong("Deployment", "labels that its selector does not take", "spec.selector.matchLabels", {"app": "x"}, "slot-a"),
    Wrong("Deployment", "a strategy of no such name", "spec.strategy.type", "Rolling", "slot-a"),
    Wrong("Deployment", "a probe of two kinds", f"{NODE}.containers.0.readinessProbe.tcpSocket", {"port": 8000},
          "slot-a"),
    Wrong("Service", "a port of no number", "spec.ports.0.port", "http", "slot-a"),
    Wrong("Service", "two ports without names", "spec.ports",
          [{"port": 8000}, {"port": 8001}], "slot-a"),
]  # fmt: skip
PLATFORM = [
    Wrong("PersistentVolumeClaim", "storage of no quantity", "spec.resources.requests.storage", "9000 Gi"),
    Wrong("PersistentVolumeClaim", "no storage", "spec.resources", GONE),
    Wrong("PersistentVolumeClaim", "a mode of no such name", "spec.accessModes", ["ReadWriteAll"]),
    Wrong("PersistentVolume", "no capacity", "spec.capacity", GONE),
    Wrong("PersistentVolume", "another claim's", "spec.claimRef.name", "other"),
    Wrong("PodDisruptionBudget", "min and max", "spec.minAvailable", 1),
    Wrong("NetworkPolicy", "a type of no such name", "spec.policyTypes", ["Inbound"]),
    Wrong("NetworkPolicy", "an address without a mask", "spec.egress", [{"to": [{"ipBlock": {"cidr": "10.0.0.1"}}]}]),
    Wrong("Role", "no verbs", "rules.0.verbs", GONE),
    Wrong("RoleBinding", "a role that is not there", "roleRef.name", "launchers"),
    Wrong("RoleBinding", "a subject without a namespace", "subjects.0.namespace", GONE),
    Wrong("ServiceMonitor", "no selector", "spec.selector", GONE),
    Wrong("ServiceMonitor", "an interval of no duration", "spec.endpoints.0.interval", "half a minute"),
    Wrong("PrometheusRule", "an alert without an expression", "spec.groups.0.rules.0.expr", GONE),
    Wrong("ValidatingAdmissionPolicy", "an expression that no CEL reads", "spec.validations.0.expression", "object.("),
    Wrong("ValidatingAdmissionPolicy", "a variable of no such name", "spec.validations.0.expression", "variables.pod"),
    Wrong("ValidatingAdmissionPolicy", "a failure policy of no such name", "spec.failurePolicy", "Failing"),
    Wrong("ValidatingAdmissionPolicyBinding", "a policy that is not there", "spec.policyName", "preference-tuning"),
    Wrong("ValidatingAdmissionPolicyBinding", "no action", "spec.validationActions", GONE),
    Wrong("ValidatingAdmissionPolicyBinding", "deny and warn", "spec.validationActions", ["Deny", "Warn"]),
    Wrong("ValidatingAdmissionPolicyBinding", "parameters that are not there", "spec.paramRef.name", "launch-limit"),
    Wrong("ResourceQuota", "pods of no quantity", "spec.hard.pods", "many"),
    Wrong("ResourceQuota", "a scope of no such name", "spec.scopes", ["Terminated"]),
    Wrong("LimitRange", "a least over the most", "spec.limits.0.min", {"cpu": "100000", "memory": "90Ti"}),
    Wrong("LimitRange", "a type of no such name", "spec.limits.0.type", "Containers"),
    Wrong("ServiceAccount", "a name in capitals", "metadata.name", "Trainer"),
    Wrong("ConfigMap", "a key with a space", 'data."A B"', "x", "run-environment"),
    Wrong("ConfigMap", "a number as a value", "data.DAGSTER_LOGS_BUCKET", 7, "run-environment"),
    Wrong("Namespace", "a name with a dot", "metadata.name", "preference.tuning"),
]  # fmt: skip
WRONG = [*POOL, *KUEUE, *GANGS, *SERVING, *PLATFORM]
