"""Rules on names and labels: what the API server takes, what it refuses for the pods later."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from k8s.lint.manifests import Manifests
from k8s.lint.pods import ITERATION, Workload, namespace, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import labels, rows, text, whole

LONGEST = 63
SUFFIX = "-xxxxx"
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"(?:{_DNS_LABEL}\.)*{_DNS_LABEL}")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_RBAC_NAME = re.compile(r"[^/%\s]+")
_KEY = re.compile(rf"(?:(?:{_DNS_LABEL}\.)*{_DNS_LABEL}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_VALUE = re.compile(r"(?:[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@rule("error", fix="Use lower-case letters, digits and dashes (k8s.gang.object_name makes a name of anything).")
def name_invalid(seen: Manifests) -> Hits:
    """The API server refuses it; in a manifest put together as text, a line break and --- would begin another object,
    of somebody else's choice."""
    for node in seen.objects:
        name = text(node, "metadata", "name")
        form = _RBAC_NAME if text(node, "apiVersion").startswith("rbac.authorization.k8s.io/") else _NAME
        if len(name) > 253 or not form.fullmatch(name):
            yield where(node, "metadata.name"), repr(name[:80]) if name else "none"
        space = text(node, "metadata", "namespace")
        if space and (len(space) > LONGEST or not re.fullmatch(_DNS_LABEL, space)):
            yield where(node, "metadata.namespace"), repr(space[:80])


@rule(
    "error", fix="Names: lower-case letters, digits and dashes; environment: letters, digits, - _ . ; no white space."
)
def reference_invalid(seen: Manifests) -> Hits:
    """No object can have such a name, no process such a variable, no registry such an image: an operator's kind is
    taken, and each of its pods refused."""
    for pods in seen.pods:
        volumes = enumerate(rows(pods.spec, "volumes"))
        named = {f"volumes[{i}]": text(v, "persistentVolumeClaim", "claimName") for i, v in volumes}
        named["serviceAccountName"] = text(pods.spec, "serviceAccountName")
        for path, name in named.items():
            if name and (len(name) > 253 or not _NAME.fullmatch(name)):
                yield f"{pods.where}.{path}", repr(name[:80])
        for container in pods.containers:
            if re.search(r"\s", image := text(container.node, "image")):
                yield f"{container.where}.image", repr(image[:80])
            for place, name, _ in container.env():
                if not _ENV_NAME.fullmatch(name):
                    yield place, repr(name[:80])


@rule("error", fix="Shorten the name (k8s.gang.object_name keeps 40 characters and a digest).")
def pod_name_too_long(seen: Manifests) -> Hits:
    """Pods add their numbers to the name of their job, and a host name has 63 characters: the object is taken, its
    pods are refused one by one, or found under no host name."""
    for workload in seen.trainings:
        for name in _longest_pod_names(workload):
            if len(name) > LONGEST:
                yield f"{workload.where} metadata.name", f"a pod {name!r} of {len(name)} characters"


@rule("error", fix="Keys: [prefix/]name; values: at most 63 letters, digits, - _ . (k8s.gang.label_value).")
def label_invalid(seen: Manifests) -> Hits:
    """The API server refuses the object, or, in a pod template of an operator's kind, takes it and makes no pod."""
    for place, object_labels in _all_labels(seen):
        for key, value in object_labels.items():
            if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                yield place, repr(f"{key}: {value}"[:100])


@rule("error", fix=f"Label the object and its pods {ITERATION}.")
def no_iteration_label(seen: Manifests) -> Hits:
    """Nobody can say whose pods these are: neither the launcher that attaches to them again, nor the ledger of their
    cost, nor whoever is woken at night."""
    for workload in seen.trainings:
        if ITERATION not in labels(workload.object, "metadata", "labels"):
            yield f"{workload.where} metadata.labels", f"no {ITERATION}"
        for pods in workload.all_pods:
            if pods.containers and ITERATION not in pods.labels:
                yield f"{pods.where} (template.metadata.labels)", f"no {ITERATION}"


@rule("warning", fix="Name the namespace of the trainings.")
def no_namespace(seen: Manifests) -> Hits:
    """In 'default' it shares quota, policies and service accounts with everything that nobody placed."""
    for workload in seen.trainings:
        if namespace(workload.object) == "default":
            yield f"{workload.where} metadata.namespace", text(workload.object, "metadata", "namespace") or "not set"


@rule("error", fix="Keep one of them.")
def duplicate_object(seen: Manifests) -> Hits:
    """The second one applied silently replaces the first."""
    keys = [
        (text(o, "apiVersion").partition("/")[0], text(o, "kind"), namespace(o), text(o, "metadata", "name"))
        for o in seen.objects
    ]
    twice = {key for key, n in Counter(keys).items() if n > 1}
    for node in {key: o for key, o in zip(keys, seen.objects, strict=True) if key in twice}.values():
        yield where(node), f"twice in namespace {namespace(node)!r}"


def _longest_pod_names(workload: Workload) -> Iterator[str]:
    name = text(workload.object, "metadata", "name")
    if workload.kind == "Job":
        yield f"{name}-{max(workload.size - 1, 0)}{SUFFIX}"
    if workload.kind == "JobSet":
        for row, job in zip(rows(workload.spec, "replicatedJobs"), workload.jobs, strict=True):
            last = max(whole(row, "replicas", default=1) - 1, 0)
            yield f"{name}-{job.name}-{last}-{max(job.parallelism - 1, 0)}{SUFFIX}"
    if workload.kind == "VolcanoJob":
        for task, pods in zip(rows(workload.spec, "tasks"), workload.pods, strict=True):
            yield f"{name}-{text(task, 'name')}-{max(pods.count - 1, 0)}"
    if workload.kind == "RayJob":  # KubeRay's validation: the cluster's name and the head service's add this much
        yield f"{name}{SUFFIX}-head-svc"


def _all_labels(seen: Manifests) -> Iterator[tuple[str, dict[str, str]]]:
    for node in seen.objects:
        yield where(node, "metadata.labels"), labels(node, "metadata", "labels")
        yield where(node, "spec.selector.matchLabels"), labels(node, "spec", "selector", "matchLabels")
    for pods in seen.pods:
        yield f"{pods.where} (template.metadata.labels)", pods.labels
        yield f"{pods.where}.nodeSelector", labels(pods.spec, "nodeSelector")
