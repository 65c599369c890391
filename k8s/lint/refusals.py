"""Rules on what no schema says and the API server's own code, or an operator's webhook, refuses: values that contradict
each other, and references within one object."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from k8s.lint.manifests import Manifests
from k8s.lint.pods import Pods, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, labels, quantity, rows, sub, text, texts, whole

HANDLERS = {"exec", "grpc", "httpGet", "tcpSocket"}
LABEL = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
FIELD = re.compile(
    r"metadata\.(?:name|namespace|uid|(?:annotations|labels)\['[^']+'\])"
    r"|spec\.(?:nodeName|serviceAccountName)|status\.(?:hostIPs?|podIPs?)"
)
"""Of a pod, for its environment."""
MAP_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
STRATEGIES = {"Deployment": {"", "Recreate", "RollingUpdate"}, "StatefulSet": {"", "OnDelete", "RollingUpdate"}}


@rule("error", fix="Correct the field: the API server's message would name it.")
def pod_refused(seen: Manifests) -> Hits:
    """The API server refuses the pod. A Job or an operator's kind that holds its template is taken, and makes none."""
    for pods in seen.pods:
        yield from _pod(pods)


def _pod(pods: Pods) -> Hits:
    if (grace := whole(pods.spec, "terminationGracePeriodSeconds")) < 0:
        yield f"{pods.where}.terminationGracePeriodSeconds", str(grace)
    volumes = [text(row, "name") for row in rows(pods.spec, "volumes")]
    for name in sorted({name for name in volumes if volumes.count(name) > 1}):
        yield f"{pods.where}.volumes", f"two of the name {name!r}"
    for i, row in enumerate(rows(pods.spec, "volumes")):
        if len(kinds := sorted(map(str, row.keys() - {"name"}))) > 1:
            yield f"{pods.where}.volumes[{i}]", f"of {len(kinds)} kinds: {', '.join(kinds)}"
    for i, row in enumerate(rows(pods.spec, "tolerations")):
        if text(row, "operator") == "Exists" and text(row, "value"):
            yield f"{pods.where}.tolerations[{i}]", f"Exists with the value {text(row, 'value')!r}"
    for container in pods.containers:
        for row in rows(container.node, "volumeMounts"):
            if (name := text(row, "name")) not in volumes:
                yield f"{container.where}.volumeMounts", f"no volume {name!r}"
        for row in rows(container.node, "ports"):
            if not 0 < (port := whole(row, "containerPort")) < 2**16:
                yield f"{container.where}.ports", str(port)
        for i, row in enumerate(rows(container.node, "env")):
            yield from ((f"{container.where}.env[{i}]", problem) for problem in _variable(row))
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            chosen = sorted(HANDLERS & sub(container.node, probe).keys())
            if sub(container.node, probe) and len(chosen) != 1:
                yield f"{container.where}.{probe}", f"asks by {', '.join(chosen) or 'nothing'}"


def _variable(row: Node) -> Iterator[str]:
    source = sub(row, "valueFrom")
    if text(row, "value") and source:
        yield f"{text(row, 'name')} has a value and a source"
    for kind in ("secretKeyRef", "configMapKeyRef"):
        if kind in source and not (text(source, kind, "name") and text(source, kind, "key")):
            yield f"{kind} without a name or a key"
    if "fieldRef" in source and not FIELD.fullmatch(text(source, "fieldRef", "fieldPath")):
        yield f"{text(source, 'fieldRef', 'fieldPath')!r} is no field that a variable can have"


@rule("error", fix="Name indexes below completions and exit codes above 0, and leave the selector to the Job.")
def job_refused(seen: Manifests) -> Hits:
    """The API server refuses the Job. A JobSet that holds it is taken, and makes none."""
    for job in (job for workload in seen.workloads for job in workload.jobs):
        size = whole(job.spec, "completions", default=job.parallelism)
        for row in rows(job.spec, "successPolicy", "rules"):
            if any(int(i) >= size for i in re.findall(r"\d{1,9}", text(row, "succeededIndexes"))):
                yield f"{job.where}.successPolicy", f"index {text(row, 'succeededIndexes')} of {size}"
        for row in rows(job.spec, "podFailurePolicy", "rules"):
            if text(row, "onExitCodes", "operator") == "In" and "0" in texts(row, "onExitCodes", "values"):
                yield f"{job.where}.podFailurePolicy", "exit code 0 is no failure"
        if "selector" in job.spec and job.spec.get("manualSelector") is not True:
            yield f"{job.where}.selector", "without manualSelector"


@rule("error", fix="Name replicated jobs as DNS labels; rules by letters, digits, _ , and :, a letter first.")
def jobset_refused(seen: Manifests) -> Hits:
    """JobSet's webhook refuses the object: the names of replicated jobs become part of the names of pods."""
    for gang in seen.of("JobSet"):
        for i, row in enumerate(rows(gang, "spec", "replicatedJobs")):
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text(row, "name")):
                yield where(gang, f"spec.replicatedJobs[{i}].name"), repr(text(row, "name"))
        for row in rows(gang, "spec", "failurePolicy", "rules"):
            name = text(row, "name")
            if name and not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", name):
                yield where(gang, "spec.failurePolicy.rules"), repr(name)


@rule("error", fix="Let idle be below min and min at most max, and name a target that is there.")
def scaling_bounds(seen: Manifests) -> Hits:
    """KEDA's or KServe's webhook refuses bounds that contradict each other; without the webhook nothing is scaled."""
    there = {(text(o, "kind"), text(o, "metadata", "namespace"), text(o, "metadata", "name")) for o in seen.objects}
    there |= {("Deployment", space, f"{name}-predictor") for kind, space, name in there if kind == "InferenceService"}
    for scaled in seen.of("ScaledObject"):
        spec = sub(scaled, "spec")
        least, most = whole(spec, "minReplicaCount"), whole(spec, "maxReplicaCount", default=100)
        if least > most:
            yield where(scaled, "spec.minReplicaCount"), f"{least}, maxReplicaCount is {most}"
        if "idleReplicaCount" in spec and whole(spec, "idleReplicaCount") >= least:
            yield where(scaled, "spec.idleReplicaCount"), f"{whole(spec, 'idleReplicaCount')}, min is {least}"
        kind, name = text(spec, "scaleTargetRef", "kind") or "Deployment", text(spec, "scaleTargetRef", "name")
        space = text(scaled, "metadata", "namespace")
        known = kind == "Deployment" and any(k == kind and s == space for k, s, _ in there)
        if known and (kind, space, name) not in there:
            yield where(scaled, "spec.scaleTargetRef"), f"no {kind} {name!r} in {space!r}"
    for service in seen.of("InferenceService"):
        for part in ("predictor", "transformer", "explainer"):
            least, most = (whole(service, "spec", part, key) for key in ("minReplicas", "maxReplicas"))
            if 0 < most < least:
                yield where(service, f"spec.{part}.minReplicas"), f"{least}, maxReplicas is {most}"


@rule("error", fix="Let the selector be among the labels of the template.")
def selector_mismatch(seen: Manifests) -> Hits:
    """The API server refuses a workload whose selector does not take its own pods."""
    for workload in seen.workloads:
        if workload.kind not in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"):
            continue
        chosen = labels(workload.spec, "selector", "matchLabels")
        for pods in workload.pods:
            if missing := sorted(chosen.items() - pods.labels.items()):
                yield f"{workload.where} spec.selector", ", ".join(f"{key}={value}" for key, value in missing)
        strategy = text(workload.spec, "strategy", "type") or text(workload.spec, "updateStrategy", "type")
        if strategy not in STRATEGIES.get(workload.kind, {strategy}):
            yield f"{workload.where} spec.strategy", repr(strategy)


@rule("error", fix="Give each port a name of its own and a number up to 65535.")
def service_ports(seen: Manifests) -> Hits:
    """The API server refuses a Service with several ports of which one has no name, or two the same."""
    for service in seen.of("Service", "v1"):
        ports = rows(service, "spec", "ports")
        names = [text(row, "name") for row in ports]
        if len(ports) > 1 and ("" in names or len({*names}) < len(names)):
            yield where(service, "spec.ports"), f"names {names}"
        for row in ports:
            if not 0 < whole(row, "port") < 2**16:
                yield where(service, "spec.ports"), repr(row.get("port"))


@rule("error", fix="Ask for storage, give the volume a capacity, and let both name each other.")
def storage_refused(seen: Manifests) -> Hits:
    """A claim without a size is refused; a volume that is kept for another claim is never bound to it: pods wait."""
    claims = {
        (text(c, "metadata", "namespace"), text(c, "metadata", "name")): c for c in seen.of("PersistentVolumeClaim")
    }
    for claim in claims.values():
        if not quantity(text(claim, "spec", "resources", "requests", "storage")):
            yield where(claim, "spec.resources.requests.storage"), "not set"
    for volume in seen.of("PersistentVolume"):
        if not quantity(text(volume, "spec", "capacity", "storage")):
            yield where(volume, "spec.capacity.storage"), "not set"
        kept = (text(volume, "spec", "claimRef", "namespace"), text(volume, "spec", "claimRef", "name"))
        name = text(volume, "metadata", "name")
        for key, claim in claims.items():
            if kept != ("", "") and text(claim, "spec", "volumeName") == name and key != kept:
                yield where(volume, "spec.claimRef"), f"{kept[1]!r} of {kept[0]!r}, {key[1]!r} of {key[0]!r} wants it"


@rule("error", fix="Set minAvailable or maxUnavailable, addresses with a mask, one integer for Gt, plain keys.")
def object_refused(seen: Manifests) -> Hits:
    """The API server refuses it, whatever its schema says."""
    for budget in seen.of("PodDisruptionBudget"):
        if {"minAvailable", "maxUnavailable"} <= sub(budget, "spec").keys():
            yield where(budget, "spec"), "minAvailable and maxUnavailable"
    for policy in seen.of("NetworkPolicy"):
        for cidr in _addresses(policy):
            if not _is_network(cidr):
                yield where(policy, "spec"), f"{cidr!r} is no address with a mask"
    for pool in seen.of("NodePool"):
        for row in rows(pool, "spec", "template", "spec", "requirements"):
            values = texts(row, "values")
            if text(row, "operator") in ("Gt", "Lt") and not (len(values) == 1 and values[0].isdecimal()):
                yield (
                    where(pool, "spec.template.spec.requirements"),
                    f"{text(row, 'key')} {text(row, 'operator')} {values}",
                )
    for kind in ("ConfigMap", "Secret"):
        for held in seen.of(kind, "v1"):
            for key in sorted({*sub(held, "data"), *sub(held, "binaryData")}, key=str):
                if not MAP_KEY.fullmatch(str(key)):
                    yield where(held, "data"), f"the key {str(key)[:80]!r}"
    for space in seen.of("Namespace", "v1"):
        if "." in text(space, "metadata", "name"):
            yield where(space, "metadata.name"), "a dot"


@rule("error", fix="Name a Role of the manifests, and the namespace of each ServiceAccount.")
def binding_dangling(seen: Manifests) -> Hits:
    """A binding to a role that is not there gives no right, and is no error: the launcher is forbidden everything."""
    roles = {(text(r, "metadata", "namespace"), text(r, "metadata", "name")) for r in seen.of("Role")}
    for binding in seen.of("RoleBinding"):
        space, name = text(binding, "metadata", "namespace"), text(binding, "roleRef", "name")
        if text(binding, "roleRef", "kind") == "Role" and roles and (space, name) not in roles:
            yield where(binding, "roleRef"), f"no Role {name!r} in {space!r}"
        for subject in rows(binding, "subjects"):
            if text(subject, "kind") == "ServiceAccount" and not text(subject, "namespace"):
                yield where(binding, "subjects"), f"{text(subject, 'name')!r} has no namespace"


@rule("error", fix="List a flavour's resources in the order of coveredResources, each flavour once, with whole labels.")
def queue_refused(seen: Manifests) -> Hits:
    """Kueue's webhook refuses the object, and the queue that was there stays as it is."""
    for queue in seen.of("ClusterQueue"):
        names: list[str] = []
        for group in rows(queue, "spec", "resourceGroups"):
            covered = texts(group, "coveredResources")
            for flavour in rows(group, "flavors"):
                names.append(text(flavour, "name"))
                listed = [text(row, "name") for row in rows(flavour, "resources")]
                if listed != covered:
                    yield (
                        where(queue, f"spec.resourceGroups {names[-1]}"),
                        f"{', '.join(listed)}, not {', '.join(covered)}",
                    )
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield where(queue, "spec.resourceGroups"), f"{name!r} twice"
    for flavour in seen.of("ResourceFlavor"):
        for key, value in labels(flavour, "spec", "nodeLabels").items():
            if not LABEL.fullmatch(value):
                yield where(flavour, "spec.nodeLabels"), f"{key}: {value[:80]!r} is no label's value"


def _addresses(policy: Node) -> Iterator[str]:
    for side, end in (("ingress", "from"), ("egress", "to")):
        for row in rows(policy, "spec", side):
            for peer in rows(row, end):
                block = sub(peer, "ipBlock")
                yield from [text(block, "cidr")] if block else []
                yield from texts(block, "except")


def _is_network(cidr: str) -> bool:
    try:
        ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return False
    return "/" in cidr
