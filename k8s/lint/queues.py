"""Rules on what stands between a launch and its gang: rights, keys, queues; and on the routes of a rollout."""

import yaml

from k8s.lint.manifests import GANGS, GPU, Manifests, Pods, Workload, matches, namespace, where
from k8s.lint.rules import Hits, Node, at, labels, quantity, rows, rule, sub, text, texts, whole

QUEUE = "kueue.x-k8s.io/queue-name"
LAUNCHER, KEYS = "launcher", "mark-keys"
"""The account of runs, and the Secret with the keys of the marks of users."""


@rule("Add the component of its backend to the overlay (k8s/manifests/components).")
def no_right_to_launch(seen: Manifests) -> Hits:
    """Each backend's rights are a component of their own, and the launch ends at its first request with 403."""
    roles = seen.named("Role")
    bound = [b for b in seen.of("RoleBinding") if LAUNCHER in (text(s, "name") for s in rows(b, "subjects"))]
    given = {
        (namespace(binding), group, resource)
        for binding in bound
        for row in rows(roles.get((namespace(binding), text(binding, "roleRef", "name"))), "rules")
        if "create" in texts(row, "verbs")
        for group in texts(row, "apiGroups")
        for resource in texts(row, "resources")
    }
    for work in (each for each in seen.workloads if each.kind in GANGS):
        space, group = namespace(work.node), text(work.node, "apiVersion").rpartition("/")[0]
        ours = labels(work.node, "metadata", "labels").get("app.kubernetes.io/managed-by") == "preference-tuning"
        known = space in map(namespace, bound)
        if ours and known and (space, group, GANGS[work.kind]) not in given:
            yield work.where, f"account {LAUNCHER} may not create {GANGS[work.kind]} of {group}"


def _queues(seen: Manifests, work: Workload) -> tuple[Node, Node]:
    """The workload's LocalQueue and its ClusterQueue; empty where the manifests make none."""
    name = labels(work.node, "metadata", "labels").get(QUEUE, "")
    local = seen.named("LocalQueue").get((namespace(work.node), name), {})
    cluster = seen.named("ClusterQueue").get(("default", text(local, "spec", "clusterQueue")), {})
    return local, cluster


@rule("Name a queue of the manifests; take stopPolicy away; let namespaceSelector match the gang's namespace.")
def queue_closed(seen: Manifests) -> Hits:
    """A queue that is not there or on hold admits nothing, nor one whose selector leaves the namespace out (without a
    selector: all of them): the gang waits, and only its Workload says why."""
    spaces, there = seen.named("Namespace", "v1"), seen.named("LocalQueue")
    for queue in there.values():
        if ("default", name := text(queue, "spec", "clusterQueue")) not in seen.named("ClusterQueue"):
            yield where(queue, "spec.clusterQueue"), f"no ClusterQueue {name!r}"
    for work in seen.trainings:
        space, wanted = namespace(work.node), labels(work.node, "metadata", "labels").get(QUEUE)
        local, cluster = _queues(seen, work)
        if there and wanted and not local:
            yield f"{work.where} metadata.labels", f"no LocalQueue {wanted!r} in {space!r}"
        for holder in (local, cluster):
            if (policy := text(holder, "spec", "stopPolicy")) not in {"", "None"}:
                yield where(holder, "spec.stopPolicy"), f"{policy}, for {work.where}"
        selector, name = at(cluster, "spec", "namespaceSelector"), {"kubernetes.io/metadata.name": space}
        made = spaces.get(("default", space))
        judged = made is not None or set(_keys(selector)) <= {*name}
        if cluster and (
            selector is None or (judged and not matches(selector, labels(made, "metadata", "labels") | name))
        ):
            yield where(cluster, "spec.namespaceSelector"), f"leaves out {space!r} of {work.where}"


def _keys(selector: object) -> list[str]:
    return [*labels(selector, "matchLabels"), *(text(row, "key") for row in rows(selector, "matchExpressions"))]


def offers(cluster: Node, resource: str = "") -> list[Node]:
    """Flavours of a ClusterQueue, of the groups that cover the resource."""
    groups = rows(cluster, "spec", "resourceGroups")
    covering = [group for group in groups if not resource or resource in texts(group, "coveredResources")]
    return [flavour for group in covering for flavour in rows(group, "flavors")]


def quota(offer: Node, resource: str) -> float:
    return sum(quantity(row.get("nominalQuota")) for row in rows(offer, "resources") if text(row, "name") == resource)


@rule("Cover the resource, with a quota that holds one whole gang, in one flavour that its pods may have.")
def quota_too_small(seen: Manifests) -> Hits:
    """A gang that asks for more than its flavours have, or for a resource that the queue does not cover, is never
    admitted: it waits without an error."""
    flavours = seen.named("ResourceFlavor")
    for work in seen.trainings:
        _, cluster = _queues(seen, work)
        if not cluster or any(text(cluster, "spec", key) for key in ("cohortName", "cohort")):  # a cohort lends
            continue
        names = {str(n) for p in work.all_pods for c in p.containers for n in sub(c.node, "resources", "requests")}
        names |= {GPU, *(["pods"] if offers(cluster, "pods") else [])}
        for resource in sorted(names):
            sets = [(pods.count * (1 if resource == "pods" else pods.asks(resource)), [
                quota(offer, resource) for offer in offers(cluster, resource)
                if _takes(flavours.get(("default", text(offer, "name")), {}), pods)
            ]) for pods in work.all_pods]  # fmt: skip
            asked, most = sum(each for each, _ in sets), max((sum(quotas) for _, quotas in sets), default=0.0)
            if asked > most or any(each > max(quotas, default=0.0) for each, quotas in sets):
                there = " and ".join(f"{each:g}" for each in max((quotas for _, quotas in sets), key=sum)) or "0"
                yield where(cluster, "spec.resourceGroups"), f"{resource}: {there}, {work.where} asks {asked:g}"


def _takes(flavour: Node, pods: Pods) -> bool:
    """Whether Kueue may give the pods this flavour: it compares over the flavour's own label keys."""
    wanted = labels(flavour, "spec", "nodeLabels").items()
    taints = rows(flavour, "spec", "nodeTaints")
    return all(value in pods.selected.get(key, [value]) for key, value in wanted) and all(map(pods.tolerates, taints))


@rule("Give both a label of one key with two values, the wider a taint, or keep one of them.", "warning")
def flavour_takes_others(seen: Manifests) -> Hits:
    """Kueue compares what pods select with the label keys of one flavour at a time, so a flavour that names less than
    another takes its gangs too: they are charged to the wrong quota, and pass a quota of 0 of their own."""
    known = {name: flavour for (_, name), flavour in seen.named("ResourceFlavor").items()}
    for queue in seen.of("ClusterQueue"):
        listed = [offer for offer in offers(queue, GPU) if text(offer, "name") in known]
        for wider, narrower in ((a, b) for a in listed for b in listed if a is not b and quota(a, GPU)):
            names = [text(offer, "name") for offer in (wider, narrower)]
            less, more = (labels(known[name], "spec", "nodeLabels") for name in names)
            taints = [rows(known[name], "spec", "nodeTaints") for name in names]
            if less.items() < more.items() and all(taint in taints[1] for taint in taints[0]):
                missing = ", ".join(sorted(more.keys() - less.keys()))
                yield where(queue, "spec.resourceGroups"), f"{names[0]} takes what selects {names[1]}: no {missing}"


@rule("Name a Role of the manifests, and the namespace of each ServiceAccount.")
def binding_dangling(seen: Manifests) -> Hits:
    """A binding to a role that is not there gives no right, and is no error: the launcher is forbidden everything."""
    roles = seen.named("Role")
    for binding in seen.of("RoleBinding"):
        space, name = namespace(binding), text(binding, "roleRef", "name")
        if text(binding, "roleRef", "kind") == "Role" and roles and (space, name) not in roles:
            yield where(binding, "roleRef"), f"no Role {name!r} in {space!r}"
        for subject in rows(binding, "subjects"):
            if text(subject, "kind") == "ServiceAccount" and not text(subject, "namespace"):
                yield where(binding, "subjects"), f"{text(subject, 'name')!r} has no namespace"


@rule(f"Take Secret {KEYS} as environment (envFrom; env_secrets of the run launcher), not optional.")
def mark_keys(seen: Manifests) -> Hits:
    """Without the keys nobody is forgotten, and once somebody was, no row is read: traces, labels, reward models and
    trainings fail in the middle of a run. A pod that waits for a Secret says so before it begins."""
    for container in (container for pods in seen.pods for container in pods.containers):
        command = texts(container.node, "command") + texts(container.node, "args")
        taken = [sub(row, "secretRef") for row in rows(container.node, "envFrom")]
        taken += [sub(row, "valueFrom", "secretKeyRef") for row in rows(container.node, "env")]
        required = [text(source, "name") for source in taken if source.get("optional") is not True]
        if command[:3] == ["dagster", "api", "grpc"] and KEYS not in required:
            yield f"{container.where}.envFrom", f"no Secret {KEYS} that has to be there"
    for config in seen.of("ConfigMap"):
        launcher = sub(_yaml(text(config, "data", "dagster.yaml")), "run_launcher")
        if text(launcher, "class") == "K8sRunLauncher" and KEYS not in texts(launcher, "config", "env_secrets"):
            yield where(config, "data.dagster.yaml run_launcher.config.env_secrets"), f"no Secret {KEYS}"


def _yaml(content: str) -> object:
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError):  # Dagster's own to refuse
        return None


@rule("Add the Service, or name one that is there, with its port.")
def route_backend_missing(seen: Manifests) -> Hits:
    """A backend that is not there or has no port, with a weight above 0, answers 500 for its share (Gateway API)."""
    there = set(seen.named("Service", "v1"))
    there |= {(space, name + end) for space, name in seen.named("InferenceService") for end in ("", "-predictor")}
    for route in seen.of("HTTPRoute"):
        for i, row in enumerate(rows(route, "spec", "rules")):
            for j, backend in enumerate(rows(row, "backendRefs")):
                place = where(route, f"spec.rules[{i}].backendRefs[{j}]")
                key = (text(backend, "namespace") or namespace(route), text(backend, "name"))
                if text(backend, "kind") in {"", "Service"} and key not in there:
                    yield place, f"no Service {key[1]!r} in {key[0]!r}"
                elif text(backend, "kind") in {"", "Service"} and not whole(backend, "port"):
                    yield f"{place}.port", f"none for {key[1]!r}"
