"""Rules on Services and routes: how pods of a gang find each other, and how a canary gets its share of the traffic."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.lint.manifests import Manifests
from k8s.lint.pods import namespace, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, labels, rows, sub, text, texts, whole

_GIVEN = (
    "batch.kubernetes.io/job-name",
    "job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
    "ray.io/cluster",
)
"""Labels with the name of a workload, which its controller gives to the pods."""


def _meeting(seen: Manifests) -> Iterator[Node]:
    """Services that select the pods of a gang, in its namespace."""
    for service in seen.of("Service", "v1"):
        chosen = labels(service, "spec", "selector")
        if any(
            chosen
            and chosen.items()
            <= {**pods.labels, **dict.fromkeys(_GIVEN, text(gang.object, "metadata", "name"))}.items()
            and namespace(gang.object) == namespace(service)
            for gang in seen.gangs
            for pods in gang.pods
        ):
            yield service


@rule("error", fix="Set clusterIP: None.")
def service_not_headless(seen: Manifests) -> Hits:
    """A virtual address leads each connection to any pod of the gang, and NCCL needs a certain one."""
    for service in _meeting(seen):
        if (address := text(service, "spec", "clusterIP")) != "None":
            yield where(service, "spec.clusterIP"), address or "not set"


@rule("error", fix="Set publishNotReadyAddresses: true.")
def hides_starting_pods(seen: Manifests) -> Hits:
    """The pods must meet before any of them can be ready: without it no name resolves until all have given up."""
    for service in _meeting(seen):
        if sub(service, "spec").get("publishNotReadyAddresses") is not True:
            yield where(service, "spec.publishNotReadyAddresses"), "not set"
    for gang in seen.gangs:
        network = sub(gang.spec, "network") if gang.kind == "JobSet" else {}
        for key in ("publishNotReadyAddresses", "enableDNSHostnames"):
            if network.get(key) is False:
                yield f"{gang.where} spec.network.{key}", "false"


@rule("error", fix="Set subdomain to the name of a headless Service that selects the pods, and add that Service.")
def no_rendezvous(seen: Manifests) -> Hits:
    """Without a subdomain and its Service no pod of an indexed Job has a name that its peers can look up."""
    there = {(namespace(s), text(s, "metadata", "name")) for s in seen.of("Service", "v1")}
    for gang in (g for g in seen.gangs if g.kind == "Job"):
        for pods in gang.pods:
            name = text(pods.spec, "subdomain")
            if (namespace(gang.object), name) not in there:
                yield f"{pods.where}.subdomain", f"Service {name!r} is not there" if name else "not set"


@rule("error", fix="Edit the route that is there: weights of one route make the split, and its rollback.")
def route_conflict(seen: Manifests) -> Hits:
    """Of two routes with the same host and path the older wins, the newer does nothing: a rollback by a second route
    leaves the canary where it is."""
    owners: dict[tuple[str, ...], str] = {}
    for route in seen.of("HTTPRoute"):
        for key in sorted(_claims(route)):
            if (owner := owners.setdefault(key, where(route))) != where(route):
                yield where(route, "spec.rules"), f"{key[1] or 'any host'} {key[2]}: {owner} has it"


@rule("warning", fix="Let the weights of a rule sum to 100.")
def route_weights(seen: Manifests) -> Hits:
    """Weights are shares of their sum: 5 and 100 are not 5%, and who reads them as percent is wrong."""
    for route, i, backends in _splits(seen):
        total = sum(_weights(backends))
        if len(backends) > 1 and total not in (0, 100):
            yield where(route, f"spec.rules[{i}].backendRefs"), f"{_weights(backends)} sum to {total}"


@rule("error", fix="Give at least one backend a weight.")
def route_without_traffic(seen: Manifests) -> Hits:
    """With weights of zero alone every request is answered with 500."""
    for route, i, backends in _splits(seen):
        if not any(_weights(backends)):
            yield where(route, f"spec.rules[{i}].backendRefs"), f"weights {_weights(backends)}"


@rule("error", fix="Set port on each backendRef to a Service.")
def route_port(seen: Manifests) -> Hits:
    """A reference to a Service without a port is invalid: its share of the requests is answered with 500."""
    for route, i, backends in _splits(seen):
        for j, row in enumerate(backends):
            if text(row, "kind") in {"", "Service"} and not whole(row, "port"):
                yield where(route, f"spec.rules[{i}].backendRefs[{j}].port"), f"none for {text(row, 'name')!r}"


@rule("error", fix="Add the Service, or name one that is there.")
def route_backend_missing(seen: Manifests) -> Hits:
    """A backend that is not there, with a weight above 0, answers 500 for its share (read: Gateway API)."""
    there = {(namespace(s), text(s, "metadata", "name")) for s in seen.of("Service", "v1")}
    for service in seen.of("InferenceService"):
        there |= {(namespace(service), text(service, "metadata", "name") + end) for end in ("", "-predictor")}
    for route, i, backends in _splits(seen):
        for j, row in enumerate(backends):
            key = (text(row, "namespace") or namespace(route), text(row, "name"))
            if text(row, "kind") in {"", "Service"} and key not in there:
                yield where(route, f"spec.rules[{i}].backendRefs[{j}]"), f"no Service {key[1]!r} in {key[0]!r}"


def _claims(route: Node) -> set[tuple[str, ...]]:
    """Gateway, host, path and conditions that the route answers."""
    gateways = [
        f"{text(p, 'namespace') or namespace(route)}/{text(p, 'name')}" for p in rows(route, "spec", "parentRefs")
    ]
    return {
        (gateway, host, _path(match), str(sorted((k, str(v)) for k, v in match.items() if k != "path")))
        for gateway in gateways or [""]
        for host in texts(route, "spec", "hostnames") or [""]
        for row in rows(route, "spec", "rules")
        for match in rows(row, "matches") or [{}]
    }


def _path(match: Node) -> str:
    return f"{text(match, 'path', 'type') or 'PathPrefix'} {text(match, 'path', 'value') or '/'}"


def _splits(seen: Manifests) -> Iterator[tuple[Node, int, list[Node]]]:
    for route in seen.of("HTTPRoute"):
        for i, row in enumerate(rows(route, "spec", "rules")):
            if backends := rows(row, "backendRefs"):
                yield route, i, backends


def _weights(backends: list[Node]) -> list[int]:
    return [whole(row, "weight", default=1) for row in backends]
