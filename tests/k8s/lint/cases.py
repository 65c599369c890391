"""A set of manifests without a mistake, and how to make one in it."""

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import yaml

from k8s.gang import Gang, example
from k8s.pod import metadata, ranked_template
from k8s.render import INDEX, job_spec, render
from pipeline.recipe import Compute, Kubernetes, Training

Object = dict[str, Any]
IMAGE = "registry.example.com/preference-tuning/{}@sha256:" + "5" * 64
GONE = object()
"""Instead of a value: the key is deleted."""


def gang(
    backend: str = "jobset", nodes: int = 3, processes: int = 8, grace_s: float = 100.0,
    data_root: str = "/checkpoints/tuning", **settings: Any,
) -> Gang:  # fmt: skip
    image = IMAGE.format("nemo-rl" if backend == "rayjob" else "trainer")
    kubernetes = Kubernetes.model_validate({"backend": backend, "image": image, **settings})
    compute = Compute(nodes=nodes, processes=processes, kubernetes=kubernetes)
    training = Training(engine="nemo_rl" if backend == "rayjob" else "trl", grace_s=grace_s, timeout_s=3600.0)
    return example("case", data_root, compute, training)


STATIC: list[Object] = list(
    yaml.safe_load_all("""
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: training-spot}
spec:
  weight: 50
  limits: {nvidia.com/gpu: 24}
  disruption:
    consolidationPolicy: WhenEmpty
    consolidateAfter: 5m
    budgets: [{nodes: "0", reasons: [Drifted, Underutilized]}]
  template:
    metadata: {labels: {preference-tuning/pool: training}}
    spec:
      taints: [{key: nvidia.com/gpu, value: "true", effect: NoSchedule}]
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
        - {key: node.kubernetes.io/instance-type, operator: In, values: [p5en.48xlarge]}
        - {key: topology.kubernetes.io/zone, operator: In, values: [us-east-2a]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
spec: {nodeLabels: {karpenter.sh/capacity-type: spot}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: on-demand}
spec: {nodeLabels: {karpenter.sh/capacity-type: on-demand}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: training}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [cpu, memory, nvidia.com/gpu, vpc.amazonaws.com/efa]
      flavors:
        - name: spot
          resources:
            - {name: cpu, nominalQuota: "576"}
            - {name: memory, nominalQuota: 6Ti}
            - {name: nvidia.com/gpu, nominalQuota: 24}
            - {name: vpc.amazonaws.com/efa, nominalQuota: 48}
        - name: on-demand
          resources:
            - {name: cpu, nominalQuota: "0"}
            - {name: memory, nominalQuota: "0"}
            - {name: nvidia.com/gpu, nominalQuota: 0}
            - {name: vpc.amazonaws.com/efa, nominalQuota: 0}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: training, namespace: preference-tuning}
spec: {clusterQueue: training}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: checkpoints, namespace: preference-tuning}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 9000Gi}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: launcher, namespace: preference-tuning}
rules: [{apiGroups: [jobset.x-k8s.io], resources: [jobsets], verbs: [get, create, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: launcher, namespace: preference-tuning}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: launcher}
subjects: [{kind: ServiceAccount, name: dagster, namespace: preference-tuning}]
---
apiVersion: v1
kind: Service
metadata: {name: champion, namespace: serving}
spec: {selector: {app: champion}, ports: [{port: 8000}]}
---
apiVersion: v1
kind: Service
metadata: {name: canary, namespace: serving}
spec: {selector: {app: canary}, ports: [{port: 8000}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: champion, namespace: serving}
spec:
  replicas: 2
  selector: {matchLabels: {app: champion}}
  template:
    metadata: {labels: {app: champion}}
    spec:
      containers: [{name: server, image: "registry.example.com/server:1.4.2"}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: champion, namespace: serving}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: champion}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: model, namespace: serving}
spec:
  parentRefs: [{name: public}]
  hostnames: [model.example.com]
  rules:
    - backendRefs: [{name: champion, port: 8000, weight: 95}, {name: canary, port: 8000, weight: 5}]
""")
)


def good(backend: str = "jobset") -> list[Object]:
    """A gang of three nodes as we render it, and all that it wants of the cluster."""
    return deepcopy([*(plain_job(gang()) if backend == "job" else render(gang(backend))), *STATIC])


def plain_job(of: Gang) -> list[Object]:
    """As people write one for a cluster without operators: a Job and the Service that names its pods."""
    template = ranked_template(of, f"{of.name}-0.{of.name}", rank=INDEX)
    template["spec"]["subdomain"] = of.name
    selector = {"batch.kubernetes.io/job-name": of.name}
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata(of),
            "spec": {**job_spec(of, template), "ttlSecondsAfterFinished": of.settings.ttl_s},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(of),
            "spec": {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True},
        },
    ]


def find(objects: Sequence[Object], kind: str, name: str = "") -> Object:
    return next(o for o in objects if o["kind"] == kind and name in ("", o["metadata"]["name"]))


def put(node: Any, path: str, value: Any) -> None:
    """Set `a.0."b.c/d"`. GONE deletes; a missing mapping on the way is made."""
    *parts, last = [quoted or plain for quoted, plain in re.findall(r'"([^"]+)"|([^."]+)', path)]
    for part in parts:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    key: Any = int(last) if isinstance(node, list) else last
    if value is GONE:
        del node[key]
    else:
        node[key] = value
