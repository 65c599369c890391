"""Who reaches what in the namespaces of the platform and of the servers: policies, Services, routes."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network

import pytest
import yaml

from .manifests import (
    COMPONENT,
    MANIFESTS,
    PLATFORM,
    RUNS,
    SERVING,
    Object,
    both,
    build,
    named,
    of_kind,
    overlay,
    selects,
)
from .manifests import bare_pods as pods

NAMESPACE = "kubernetes.io/metadata.name"


def pod(component: str) -> tuple[str, Object]:
    if component in ("run_worker", "trainer", "evaluation"):  # made at run time
        return RUNS, {COMPONENT: component}
    ((namespace, labels),) = ((n, labels) for n, _, labels, _ in pods(both()) if labels[COMPONENT] == component)
    return namespace, labels


def allowed(
    policies: list[Object], direction: str, here: tuple[str, Object], there: tuple[str, Object], port: int
) -> bool:
    """Whether the policies of a pod let it send to (Egress) or take from (Ingress) another pod; addresses aside."""
    (namespace, labels), (other_namespace, other_labels) = here, there
    key, peers = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    for policy in policies:
        spec = policy["spec"]
        if policy["metadata"]["namespace"] != namespace or not selects(spec["podSelector"], labels):
            continue
        for rule in spec.get(key, []):
            if port not in [p["port"] for p in rule.get("ports", [])]:
                continue
            for peer in rule.get(peers, []):
                space = peer.get("namespaceSelector")
                near = other_namespace == namespace if space is None else selects(space, {NAMESPACE: other_namespace})
                if "ipBlock" not in peer and near and selects(peer.get("podSelector", {}), other_labels):
                    return True
    return False


REACHED_BY = {
    ("webserver", 3000): {"webserver-proxy"},
    ("mlflow", 5000): {"mlflow-proxy", "run_worker"},
    ("code-location", 4000): {"webserver", "daemon"},
    ("slot-a", 8000): {"run_worker"},
    ("slot-b", 8000): {"run_worker"},
    ("judge", 8000): {"run_worker", "evaluation"},
}


@pytest.mark.parametrize(("target", "port"), REACHED_BY)
def test_a_server_takes_calls_of_its_own_callers_alone(target: str, port: int) -> None:
    """What an attacker's own pod may send is not ours to say: strangers are judged by the side that takes."""
    policies = of_kind(both(), "NetworkPolicy")
    everyone = {labels[COMPONENT] for _, _, labels, _ in pods(both())} | {"run_worker", "trainer", "evaluation"}
    takes = {name for name in everyone if allowed(policies, "Ingress", pod(target), pod(name), port)}
    assert takes == REACHED_BY[target, port]
    sends = of_kind(overlay("eks-spot-h200"), "NetworkPolicy")
    assert [name for name in takes if not allowed(sends, "Egress", pod(name), pod(target), port)] == []
    for stranger in (("default", {COMPONENT: "webserver-proxy"}), ("default", {}), (pod(target)[0], {})):
        assert not allowed(policies, "Ingress", pod(target), stranger, port)


def test_the_gateway_reaches_proxies_and_models_only() -> None:
    gateway, policies = ("gateway-system", {}), of_kind(both(), "NetworkPolicy")
    ports = {3000, 4000, 4180, 5000, 8000}
    reached = {labels[COMPONENT] for n, _, labels, _ in pods(both())
               if any(allowed(policies, "Ingress", (n, labels), gateway, port) for port in ports)}  # fmt: skip
    assert reached == {"webserver-proxy", "mlflow-proxy", "slot-a", "slot-b"}


@pytest.mark.parametrize(("name", "server", "variable"), [
    ("dagster", "dagster-webserver", "DAGSTER_ALLOWED_HOSTS"), ("mlflow", "mlflow", "MLFLOW_SERVER_ALLOWED_HOSTS"),
])  # fmt: skip
def test_servers_allow_the_hosts_of_their_routes(name: str, server: str, variable: str) -> None:
    """A lax cookie comes along where another site sends a person: these hosts are what the servers compare with."""
    objects = build("platform")
    route = named(objects, "HTTPRoute", name)["spec"]
    proxy = named(objects, "Deployment", route["rules"][0]["backendRefs"][0]["name"])
    (port,) = named(objects, "Service", server)["spec"]["ports"]
    (sign_in,) = proxy["spec"]["template"]["spec"]["containers"]
    assert f"--upstream=http://{server}:{port['port']}" in sign_in["args"]
    (container,) = named(objects, "Deployment", server)["spec"]["template"]["spec"]["containers"]
    maps = [source["configMapRef"]["name"] for source in container["envFrom"] if "configMapRef" in source]
    values = {
        k: v for o in of_kind(objects, "ConfigMap") if o["metadata"]["name"] in maps for k, v in o["data"].items()
    }
    assert set(route["hostnames"]) <= set(values[variable].split(","))
    assert name != "dagster" or "jobs.webserver" in container["command"]


def blocks(objects: Sequence[Object]) -> Iterator[tuple[str, str, Object, set[int]]]:
    """Of what pods may reach by address: the policy, its namespace, the block and the ports."""
    for policy in of_kind(objects, "NetworkPolicy"):
        for rule in policy["spec"].get("egress", []):
            for peer in rule.get("to", []):
                if block := peer.get("ipBlock"):
                    ports = {port["port"] for port in rule["ports"]}
                    yield policy["metadata"]["name"], policy["metadata"]["namespace"], block, ports


@pytest.mark.parametrize("name", ["eks-spot-h200", "eks-a100", "gke"])
def test_addresses_are_those_of_the_overlay(name: str) -> None:
    """Nobody but the proxies, which ask the identity provider, reaches whatever there is."""
    objects = overlay(name)
    given = yaml.safe_load((MANIFESTS / "overlays" / name / "addresses.yaml").read_text())["data"]
    wide = [(p, space) for p, space, block, _ in blocks(objects) if ip_network(block["cidr"]).prefixlen < 16]
    wanted = {"private-network": [given["network"], given["cloud"]]}
    wanted["private-services"] = [*wanted["private-network"], given["api"]]
    if name == "gke":  # the control plane's own range
        assert ip_network(given["cloud"]).subnet_of(ip_network("199.36.153.0/24"))
    assert wide == [("proxies", PLATFORM)]
    for policy, cidrs in wanted.items():
        own: dict[str, list[str]] = {}
        for each, space, block, ports in blocks(objects):
            if each == policy and 443 in ports:
                own.setdefault(space, []).append(block["cidr"])
        assert own == dict.fromkeys((RUNS, SERVING if policy == "private-network" else PLATFORM), cidrs), policy


def test_trainers_reach_no_public_address_whatever_is_chosen() -> None:
    (internet,) = yaml.safe_load_all((MANIFESTS / "components" / "internet" / "egress.yaml").read_text())
    for component, may in (("trainer", False), ("code-location", False), ("run_worker", True), ("evaluation", True)):
        assert selects(internet["spec"]["podSelector"], pod(component)[1]) is may
    ((_, _, block, ports),) = blocks([internet])
    private = [ip_network(each) for each in block["except"]]
    assert block["cidr"] == "0.0.0.0/0" and ports == {443}
    for address in ("10.0.0.1", "172.20.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1"):
        assert any(ip_address(address) in each for each in private), address
