"""The pods of a gang: what runs in them, with which rights and resources, and on which nodes they may be placed."""

from collections.abc import Mapping, Sequence
from typing import Any

from k8s.gang import Gang, label_value

PLAN = "preference-tuning/plan"
"""The label by which the pods of a gang, and of its earlier attempts, know each other."""
SPOT = "cloud.google.com/gke-spot"
ACCELERATORS = {"B200": "nvidia-b200", "H200": "nvidia-h200-141gb", "H100": "nvidia-h100-mega-80gb"}
"""GKE's label cloud.google.com/gke-accelerator, by device."""
RDMA = ("a3-ultragpu-8g", "a4-highgpu-8g")
"""Google's machines with a second host interface and eight for GPUDirect RDMA."""


def placement(gang: Gang) -> dict[str, Any]:
    """Node selector and tolerations of the pod's spec. Empty for instances of any cloud: any node does."""
    machine, capacity = gang.instance, gang.settings.capacity
    if machine.cloud == "any":
        return {}
    selector = {"node.kubernetes.io/instance-type": machine.name}
    # The device plugins' taint has the value true on our node pools and present on GKE's. No blanket toleration: a pod
    # that tolerates karpenter.sh/disrupted is never drained, and dies with its node.
    tolerations = [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "preference-tuning/training", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    ]
    if machine.cloud == "gcp":
        selector["cloud.google.com/gke-accelerator"] = ACCELERATORS[machine.gpu]
        if capacity == "spot":
            selector[SPOT] = "true"
        if capacity != "on_demand":
            tolerations.append({"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    elif capacity != "spot_first":  # then Karpenter decides, by the weights of its pools
        selector["karpenter.sh/capacity-type"] = {"spot": "spot", "on_demand": "on-demand"}[capacity]
    return {"nodeSelector": selector, "tolerations": tolerations}


def affinity(gang: Gang, *expressions: Mapping[str, Any]) -> dict[str, Any]:
    """Affinity of the pod's spec: one pod of the gang on each node. Empty for instances of any cloud.

    `expressions`: on labels, where not all pods of the gang are meant.
    """
    if gang.instance.cloud == "any":
        return {}
    peers: dict[str, Any] = {"matchLabels": {PLAN: plan_label(gang)}}
    if expressions:
        peers["matchExpressions"] = [dict(expression) for expression in expressions]
    apart = [{"labelSelector": peers, "topologyKey": "kubernetes.io/hostname"}]
    wanted: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}
    if gang.instance.cloud == "gcp" and gang.settings.capacity == "on_demand":
        # No label says that a node of GKE is not spot, so no selector can ask for it.
        terms = [{"matchExpressions": [{"key": SPOT, "operator": "DoesNotExist"}]}]
        wanted["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": wanted}


def plan_label(gang: Gang) -> str:
    """Value of PLAN: as much of the digest as is legible in a label of 63 characters."""
    return gang.plan_digest[:40]


def networks(gang: Gang) -> dict[str, str]:
    """Annotations that join a pod to the networks between GPUs, named as in GKE's guide. AWS has a resource for it."""
    if gang.nodes == 1 or gang.instance.name not in RDMA:
        return {}
    joined = [("eth0", "default"), ("eth1", "gvnic-1"), *((f"eth{2 + i}", f"rdma-{i}") for i in range(8))]
    pairs = ",".join(f'{{"interfaceName":"{name}","network":"{network}"}}' for name, network in joined)
    return {"networking.gke.io/default-interface": "eth0", "networking.gke.io/interfaces": f"[{pairs}]"}


Object = dict[str, Any]

CONTAINER = "trainer"
"""Also of the JobSet's replicated job, Volcano's task and Ray's worker group."""
QUEUE = "kueue.x-k8s.io/queue-name"
PORT = 29500
"""Of the rendezvous, on node 0."""
USER = 1000
"""User and group in the images: Dagster's steps and the trainers write to the same volume."""
COMPONENTS = {"training": "trainer", "evaluation": "evaluation"}
KEYS = ("JUDGE_API_KEY", "SERVING_API_KEY")
"""Of a gang's Secret; one that it does not have is not set."""
SHARE = 32
"""One part in so many of a node is left to the daemons that run on each."""
EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}
"""No fallback to TCP in silence. Channels, buffers and interfaces are NCCL's to choose."""


def labels(gang: Gang) -> dict[str, str]:
    """Of every object and pod of the gang."""
    return {
        "app.kubernetes.io/name": "preference-tuning",
        "app.kubernetes.io/component": COMPONENTS[gang.task],
        "app.kubernetes.io/managed-by": "preference-tuning",
        "preference-tuning/iteration": label_value(gang.iteration),
        PLAN: plan_label(gang),
        "preference-tuning/attempt": str(gang.attempt),
    }


def metadata(gang: Gang, more: Mapping[str, str] | None = None) -> Object:
    """Of the gang's objects, which all bear its name. `more`: labels."""
    return {"name": gang.name, "namespace": gang.settings.namespace, "labels": labels(gang) | dict(more or {})}


def command(plan_path: str, attempt: int) -> list[str]:
    """The trainer. `attempt`: the launcher's; a pod of an older one must not write."""
    return ["python", "-m", "pipeline.training", plan_path, "--attempt", str(attempt)]


def ranked_template(gang: Gang, master: str, rank: str) -> Object:
    """The template of pods that differ by rank alone.

    `master`: DNS name of node 0. `rank`: field path of what tells a pod its node's rank.
    """
    if gang.task == "evaluation":  # its journal of answers needs no fence
        return pod_template(
            gang, container(gang, ["python", "-m", "evals", "answer", _literal(gang.plan_path)]), affinity(gang)
        )
    run = command(_literal(gang.plan_path), gang.attempt)
    fields: dict[str, str] = {}
    if gang.nodes > 1:
        run += ["--node-rank", "$(NODE_RANK)", "--master", f"{master}:{PORT}"]
        fields["NODE_RANK"] = rank
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    return pod_template(gang, container(gang, run, env), affinity(gang))


def pod_template(gang: Gang, main: Object, apart: Object) -> Object:
    """A pod on one of the gang's nodes, of one container. `apart`: its affinity, which keeps it from its peers."""
    annotations = networks(gang)
    return {
        "metadata": {"labels": labels(gang)} | ({"annotations": annotations} if annotations else {}),
        "spec": {
            "restartPolicy": "Never",  # the gang restarts as a whole, or its peers wait for ever
            "terminationGracePeriodSeconds": gang.grace_s,
            "serviceAccountName": gang.settings.service_account,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",  # or each start walks all checkpoints
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **placement(gang),
            **apart,
            "containers": [main],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": gang.settings.claim}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_mib(gang)}Mi"}},
            ],
        },
    }


def container(gang: Gang, run: Sequence[str] = (), env: Sequence[Object] = ()) -> Object:
    """The trainer's container. `run`: its command, where the operator brings none; `env`: beside the gang's own."""
    resources, named = requests(gang), {variable["name"] for variable in env}
    own = [{"name": name, "value": _literal(value)} for name, value in environment(gang).items() if name not in named]
    return {
        "name": CONTAINER,
        "image": gang.settings.image,
        "imagePullPolicy": "IfNotPresent",
        **({"command": list(run)} if run else {}),
        "env": [*env, *own, *keys(gang)],
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # A crash's last lines stay in the pod's status when the log has gone with its node.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "data", "mountPath": gang.settings.mount},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def environment(gang: Gang) -> dict[str, str]:
    """The recipe's `env` goes before our defaults."""
    defaults = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "NCCL_DEBUG": "WARN"}
    fabric = EFA if adapters(gang) else {}
    return {**defaults, **fabric, **gang.settings.env}


def keys(gang: Gang) -> list[Object]:
    """Variables of the container that are in the gang's Secret."""
    names = [name for name in KEYS if gang.secret and name not in environment(gang)]
    references = {name: {"name": gang.secret, "key": name, "optional": True} for name in names}
    return [{"name": name, "valueFrom": {"secretKeyRef": reference}} for name, reference in references.items()]


def requests(gang: Gang) -> dict[str, str]:
    """What the pod asks for, and its limit as well: all of its node but a small share, as the node is its own."""
    machine = gang.instance
    if machine.cloud == "any":
        asked = {"cpu": f"{machine.cpu_m}m", "memory": f"{machine.memory_mib}Mi"}
    else:
        cores = machine.cpu_m * (SHARE - 1) // SHARE // 1000
        asked = {"cpu": str(cores), "memory": f"{machine.memory_mib * (SHARE - 1) // SHARE // 1024}Gi"}
    if machine.gpus:
        asked["nvidia.com/gpu"] = str(gang.processes)
    if adapters(gang):
        asked["vpc.amazonaws.com/efa"] = str(adapters(gang))
    return asked


def adapters(gang: Gang) -> int:
    """EFA is for traffic between nodes: with one node it is left alone."""
    return gang.instance.efa if gang.nodes > 1 else 0


def shm_mib(gang: Gang) -> int:
    """Of /dev/shm, which counts in the container's memory: at most half of it."""
    return min(gang.settings.shm_gb * 1024, gang.instance.memory_mib // 2)


def _literal(text: str) -> str:
    """As the kubelet must be given it to leave it alone: it expands $(NAME), and $$ to $."""
    return text.replace("$", "$$")
