"""Where each kind of object keeps its pod templates, and how many pods it makes of one."""

from __future__ import annotations

import yaml

from k8s.lint.pods import Container, Job, Pods, Workload, where
from k8s.lint.tree import Node, rows, sub, text, whole


def workload(node: Node) -> Workload | None:
    kind, spec, here = text(node, "kind"), sub(node, "spec"), where(node)
    if kind == "Job" and text(node, "apiVersion").startswith("batch.volcano.sh/"):
        tasks = enumerate(rows(spec, "tasks"))
        pods = [_pods(node, f"spec.tasks[{i}].template", t, whole(t, "replicas", default=1)) for i, t in tasks]
        return Workload("VolcanoJob", here, node, pods)
    if kind == "JobSet":
        jobs = [_replicated(node, i, row) for i, row in enumerate(rows(spec, "replicatedJobs"))]
        return Workload(kind, here, node, [job.pods for job in jobs], jobs)
    if kind == "Job":
        pods = _pods(node, "spec.template", spec, whole(spec, "parallelism", default=1))
        return Workload(kind, here, node, [pods], [Job(where(node, "spec"), "", spec, pods)])
    if kind == "CronJob":
        return Workload(
            kind, here, node, [_pods(node, "spec.jobTemplate.spec.template", sub(spec, "jobTemplate", "spec"))]
        )
    if kind in ("RayJob", "RayCluster"):
        path = "spec.rayClusterSpec" if kind == "RayJob" else "spec"
        cluster = sub(spec, "rayClusterSpec") if kind == "RayJob" else spec
        pods = [_pods(node, f"{path}.headGroupSpec.template", sub(cluster, "headGroupSpec"))] if cluster else []
        for i, row in enumerate(rows(cluster, "workerGroupSpecs")):
            count = whole(row, "replicas", default=1)
            pods.append(_pods(node, f"{path}.workerGroupSpecs[{i}].template", row, count))
        submitter = sub(spec, "submitterPodTemplate")
        path = where(node, "spec.submitterPodTemplate.spec")
        beside = [Pods(path, 1, sub(submitter, "metadata"), sub(submitter, "spec"))] if submitter else []
        return Workload(kind, here, node, pods, beside=beside, submits=_submits(node) if kind == "RayJob" else [])
    if kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"):
        return Workload(kind, here, node, [_pods(node, "spec.template", spec, whole(spec, "replicas", default=1))])
    if kind == "Pod":
        return Workload(kind, here, node, [Pods(where(node, "spec"), 1, sub(node, "metadata"), spec)])
    if kind == "InferenceService" and (predictor := sub(spec, "predictor")):
        return Workload(kind, here, node, [Pods(where(node, "spec.predictor"), 1, {}, predictor)])
    return None


def _submits(job: Node) -> list[Container]:
    runtime = runtime_env(job)
    env = [{"name": str(name), "value": str(value)} for name, value in sub(runtime, "env_vars").items()]
    installs = [f"pip install {key}" for key in ("pip", "uv", "conda") if runtime.get(key)]  # Ray does, at each start
    run = {"name": "entrypoint", "command": [text(job, "spec", "entrypoint"), *installs], "env": env}
    return [Container(where(job, "spec.runtimeEnvYAML"), run, where(job, "spec.entrypoint"))]


def runtime_env(job: Node) -> Node:
    """Of a RayJob: the YAML within its YAML; empty where it is none."""
    try:
        return sub({"": yaml.safe_load(text(job, "spec", "runtimeEnvYAML"))}, "")
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return {}  # the latter five come from scalars that YAML's constructors do not understand


def _replicated(node: Node, i: int, row: Node) -> Job:
    path, job = f"spec.replicatedJobs[{i}].template.spec", sub(row, "template", "spec")
    count = whole(row, "replicas", default=1) * whole(job, "parallelism", default=1)
    return Job(where(node, path), text(row, "name"), job, _pods(node, f"{path}.template", job, count))


def _pods(node: Node, path: str, holder: Node, count: int = 1) -> Pods:
    template = sub(holder, "template")
    return Pods(where(node, f"{path}.spec"), count, sub(template, "metadata"), sub(template, "spec"))
