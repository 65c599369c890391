"""Rules on who reaches Dagster's code server, which asks nobody for a name and has no TLS of its own."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.lint.manifests import Manifests
from k8s.lint.pods import Container, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, labels, rows, sub, text, texts

_SERVERS = (["dagster", "api", "grpc"], ["dagster", "code-server", "start"])
_LOCAL = ("", "127.0.0.1", "localhost", "::1")


@rule("error", fix="Let a NetworkPolicy of its namespace take webserver and daemon alone, by label, at one port.")
def code_server_open(seen: Manifests) -> Hits:
    """Who reaches it launches runs with an instance and a command of their own, which is the pod's rights: the data
    root, the keys of marks. It speaks plain gRPC (Dagster 1.13 has TLS in its client alone)."""
    policies = seen.of("NetworkPolicy")
    for workload in seen.workloads:
        namespace = text(workload.object, "metadata", "namespace")
        for pods in workload.all_pods:
            if not (open_ones := [each for each in pods.containers if _listens(each)]):
                continue
            own = [
                policy
                for policy in policies
                if text(policy, "metadata", "namespace") == namespace and _selects(policy, pods.labels)
            ]
            if not own:
                yield open_ones[0].command, "no NetworkPolicy says who may reach it"
            for policy in own:
                yield from ((where(policy, place), problem) for place, problem in _wide(policy))


def _listens(container: Container) -> bool:
    words = texts(container.node, "command") + texts(container.node, "args")
    if words[:3] not in _SERVERS:
        return False
    hosts = [after for word, after in zip(words, [*words[1:], ""], strict=True) if word in ("--host", "-h")]
    hosts += [word.removeprefix("--host=") for word in words if word.startswith("--host=")]
    return any(host not in _LOCAL for host in hosts)


def _selects(policy: Node, pod_labels: dict[str, str]) -> bool:
    """Whether it rules what comes in to pods with these labels."""
    types = texts(policy, "spec", "policyTypes") or ["Ingress"]
    selector = sub(policy, "spec", "podSelector")
    same = all(pod_labels.get(key) == value for key, value in labels(selector, "matchLabels").items())
    return "Ingress" in types and same and all(_holds(row, pod_labels) for row in rows(selector, "matchExpressions"))


def _holds(row: Node, pod_labels: dict[str, str]) -> bool:
    value, values = pod_labels.get(text(row, "key")), texts(row, "values")
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(text(row, "operator"), False)


def _wide(policy: Node) -> Iterator[tuple[str, str]]:
    """What lets in more than pods that are named by label."""
    for i, row in enumerate(rows(policy, "spec", "ingress")):
        place = f"spec.ingress[{i}]"
        if not (peers := rows(row, "from")):
            yield f"{place}.from", "everybody"
        for j, peer in enumerate(peers):
            chosen = sub(peer, "podSelector")
            if "ipBlock" in peer or not (sub(chosen, "matchLabels") or rows(chosen, "matchExpressions")):
                yield f"{place}.from[{j}]", "addresses, or every pod of a namespace"
        if not rows(row, "ports"):
            yield f"{place}.ports", "every port"
