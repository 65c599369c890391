"""Rules on what a pod may do to its node, to the cluster and to secrets."""

from __future__ import annotations

import re

from k8s.lint.manifests import Manifests
from k8s.lint.pods import namespace, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import rows, sub, text, texts, whole

PINNED = re.compile(r"\S+@sha256:[0-9a-f]{64}")
PLACEHOLDER = "@sha256:" + "0" * 64
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(?:API|ACCESS|PRIVATE|SECRET)_?KEY)$", re.I
)
_SECRET_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s:@$(]+@"
    r"|--?(?:\w+-)*(?:password|token|api-?key)[= ](?!\$|/)\S{6,}"
)


@rule("error", fix="Remove it; the EFA device plugin and a headless Service need none of it.")
def host_namespaces(seen: Manifests) -> Hits:
    """The pod shares ports, processes or interfaces with its node and with every other pod there, past all network
    policies; two gangs collide on the rendezvous port."""
    for pods in seen.pods:
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if pods.spec.get(key) is True:
                yield f"{pods.where}.{key}", "true"


@rule("error", fix="Use the device plugin, a claim, or an emptyDir.")
def host_path(seen: Manifests) -> Hits:
    """Whoever can write to a path of the node can own it; what is written dies with the node, and its next guest reads
    it."""
    for pods in seen.pods:
        for i, volume in enumerate(rows(pods.spec, "volumes")):
            if "hostPath" in volume:
                yield f"{pods.where}.volumes[{i}]", text(volume, "hostPath", "path") or "hostPath"


@rule("error", fix="Set privileged: false (or nothing) and allowPrivilegeEscalation: false.")
def privileged(seen: Manifests) -> Hits:
    """A privileged container is root on its node. Devices come through the device plugins, without it."""
    for pods in seen.pods:
        for container in pods.containers:
            for key in ("privileged", "allowPrivilegeEscalation"):
                if sub(container.node, "securityContext").get(key) is True:
                    yield f"{container.where}.securityContext.{key}", "true"


@rule("error", fix="Drop ALL and add none.")
def capabilities(seen: Manifests) -> Hits:
    """Each is a part of root on the node. Old recipes add IPC_LOCK and SYS_RESOURCE for the limit on locked memory,
    which is the node's to raise."""
    for pods in seen.pods:
        for container in pods.containers:
            if added := texts(container.node, "securityContext", "capabilities", "add"):
                yield f"{container.where}.securityContext.capabilities.add", ", ".join(added)


@rule("error", fix="Set runAsNonRoot: true (pod or container), and a runAsUser that is not 0.")
def root(seen: Manifests) -> Hits:
    """Files on the shared volume would belong to root, and one hole in the runtime is the node."""
    for pods in seen.pods:
        outer = sub(pods.spec, "securityContext")
        for container in pods.containers:
            merged = {**outer, **sub(container.node, "securityContext")}
            user = whole(merged, "runAsUser", default=1)
            if merged.get("runAsNonRoot") is not True or user == 0:
                setting = "runAsUser 0" if user == 0 else f"runAsNonRoot {text(merged, 'runAsNonRoot') or 'not set'}"
                yield f"{container.where}.securityContext", setting


@rule("error", fix="Set automountServiceAccountToken: false on the pod.")
def api_token(seen: Manifests) -> Hits:
    """A trainer runs code of many libraries on data of strangers, and asks nothing of the API server."""
    silent = {
        (namespace(a), text(a, "metadata", "name"))
        for a in seen.of("ServiceAccount")
        if a.get("automountServiceAccountToken") is False
    }
    for workload in seen.trainings:
        for pods in workload.all_pods:
            mounts = pods.spec.get("automountServiceAccountToken")
            account = (namespace(workload.object), text(pods.spec, "serviceAccountName") or "default")
            if mounts is True or (mounts is None and account not in silent):
                yield f"{pods.where}.automountServiceAccountToken", "true" if mounts else "not set"


@rule("error", fix="List the verbs and the resources that are used.")
def wildcard_rbac(seen: Manifests) -> Hits:
    """A leaked token of that account is the namespace, or the cluster."""
    for kind in ("Role", "ClusterRole"):
        for role in seen.of(kind):
            for i, row in enumerate(rows(role, "rules")):
                if wild := [key for key in ("apiGroups", "resources", "verbs") if "*" in texts(row, key)]:
                    yield where(role, f"rules[{i}]"), f"* in {', '.join(wild)}"
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in seen.of(kind):
            if (name := text(binding, "roleRef", "name")) in {"cluster-admin", "admin"}:
                yield where(binding, "roleRef"), name


@rule("error", fix="Keep it in a Secret that is made outside the manifests, and use valueFrom.secretKeyRef.")
def secret_in_manifest(seen: Manifests) -> Hits:
    """Manifests lie in version control, and everybody who may read pods reads their environment."""
    for container in seen.commands:
        for place, name, value in container.env():
            named = _SECRET_NAME.search(name) and value and not value.startswith(("/", "$("))
            if named or _SECRET_VALUE.search(value):
                yield place, f"{name} has a literal value"  # never the value: a report is read by many
        if match := _SECRET_VALUE.search(container.script):
            yield container.command, f"a literal secret: {match[0][:12]}..."
    for node in seen.of("Secret"):
        if sub(node, "data") or sub(node, "stringData"):
            yield (
                where(node, "data"),
                f"values of {', '.join(map(str, [*sub(node, 'data'), *sub(node, 'stringData')]))}",
            )
    for node in seen.of("ConfigMap"):
        for key, value in sub(node, "data").items():
            if _SECRET_VALUE.search(str(value)):
                yield where(node, f"data.{key}"), "a literal secret"


@rule("error", fix="Write name@sha256:<digest>.")
def image_not_pinned(seen: Manifests) -> Hits:
    """A tag moves: two pods of a gang, or the run before and after a pre-emption, train with different code."""
    for pods in (p for w in seen.trainings for p in w.all_pods):
        for container in pods.containers:
            if not PINNED.fullmatch(image := text(container.node, "image")):
                yield f"{container.where}.image", image or "none"


@rule("error", fix="Write a version, or better name@sha256:<digest>.")
def image_floating(seen: Manifests) -> Hits:
    """Without a version nobody can say what runs, nor go back to what ran."""
    for workload in seen.workloads:
        for container in (c for p in workload.all_pods for c in p.containers) if not workload.trains else ():
            image = text(container.node, "image")
            name = image.rpartition("/")[2]
            if image and "@" not in image and (":" not in name or name.endswith(":latest")):
                yield f"{container.where}.image", image


@rule("warning", fix="Put the digest of your own image.")
def image_placeholder(seen: Manifests) -> Hits:
    """An image of zeros cannot be pulled: its pods wait in ImagePullBackOff."""
    for pods in seen.pods:
        for container in pods.containers:
            if (image := text(container.node, "image")).endswith(PLACEHOLDER):
                yield f"{container.where}.image", image.removesuffix("0" * 60) + "..."
