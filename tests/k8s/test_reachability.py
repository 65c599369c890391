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
bases = pytest.mark.parametrize("base", ["platform", "serving"])


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


def reaches(source: tuple[str, Object], target: tuple[str, Object], port: int) -> bool:
    policies = of_kind(both(), "NetworkPolicy")
    return allowed(policies, "Egress", source, target, port) and allowed(policies, "Ingress", target, source, port)


@pytest.mark.parametrize(("source", "target", "port"), [
    ("webserver-proxy", "webserver", 3000), ("mlflow-proxy", "mlflow", 5000), ("run_worker", "mlflow", 5000),
    ("webserver", "code-location", 4000), ("daemon", "code-location", 4000),
    ("run_worker", "judge", 8000), ("run_worker", "slot-a", 8000), ("run_worker", "slot-b", 8000),
])  # fmt: skip
def test_what_works_together_reaches_each_other(source: str, target: str, port: int) -> None:
    assert reaches(pod(source), pod(target), port)


PORTS = {"webserver": 3000, "mlflow": 5000, "code-location": 4000, "slot-a": 8000, "slot-b": 8000, "judge": 8000}


REACHED_BY = {
    "webserver": {"webserver-proxy"},
    "mlflow": {"mlflow-proxy", "run_worker"},
    "code-location": {"webserver", "daemon"},
    "slot-a": {"run_worker"},
    "slot-b": {"run_worker"},
    "judge": {"run_worker", "evaluation"},
}


def test_a_run_does_not_ask_the_code_server() -> None:
    assert not reaches(pod("run_worker"), pod("code-location"), 4000)
    assert not reaches(pod("trainer"), pod("code-location"), 4000)


@pytest.mark.parametrize("target", PORTS)
def test_nothing_else_reaches_them(target: str) -> None:
    """From the side that takes: what an attacker's own pod may send is not ours to say."""
    policies = of_kind(both(), "NetworkPolicy")
    everyone = {labels[COMPONENT] for _, _, labels, _ in pods(both())} | {"run_worker", "trainer", "evaluation"}
    takes = {name for name in everyone if allowed(policies, "Ingress", pod(target), pod(name), PORTS[target])}
    assert takes == REACHED_BY[target]
    for stranger in (("default", {COMPONENT: "webserver-proxy"}), ("default", {}), (pod(target)[0], {})):
        assert not allowed(policies, "Ingress", pod(target), stranger, PORTS[target])


def test_the_gateway_reaches_proxies_and_models_only() -> None:
    gateway, policies = ("gateway-system", {}), of_kind(both(), "NetworkPolicy")
    ports = {3000, 4000, 4180, 5000, 8000}
    reached = {labels[COMPONENT] for n, _, labels, _ in pods(both())
               if any(allowed(policies, "Ingress", (n, labels), gateway, port) for port in ports)}  # fmt: skip
    assert reached == {"webserver-proxy", "mlflow-proxy", "slot-a", "slot-b"}


@pytest.mark.parametrize("namespace", [PLATFORM, SERVING])
def test_a_namespace_is_closed_before_it_is_opened(namespace: str) -> None:
    policies = [p for p in of_kind(both(), "NetworkPolicy") if p["metadata"]["namespace"] == namespace]
    (closed,) = (p["spec"] for p in policies if p["metadata"]["name"] == "default-deny")
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy in policies:  # a policy that selects nobody is a policy that was forgotten
        chosen = [labels for n, _, labels, _ in pods(both()) if n == namespace]
        assert any(selects(policy["spec"]["podSelector"], labels) for labels in chosen), policy["metadata"]["name"]


@bases
def test_services_lead_somewhere_and_not_outside(base: str) -> None:
    for service in of_kind(build(base), "Service"):
        spec, namespace = service["spec"], service["metadata"]["namespace"]
        assert spec["type"] == "ClusterIP"
        behind = [
            s
            for n, _, labels, s in pods(build(base))
            if n == namespace and selects({"matchLabels": spec["selector"]}, labels)
        ]
        assert len(behind) == 1, service["metadata"]["name"]
        ports = behind[0]["containers"][0]["ports"]
        assert all(
            p["targetPort"] in {q.get("name") for q in ports} | {q["containerPort"] for q in ports}
            for p in spec["ports"]
        )


def test_people_come_in_through_the_proxies() -> None:
    objects = build("platform")
    backends = {
        b["name"] for r in of_kind(objects, "HTTPRoute") for rule in r["spec"]["rules"] for b in rule["backendRefs"]
    }
    assert backends == {"webserver-proxy", "mlflow-proxy"}
    for name in backends:
        (spec,) = (spec for _, n, _, spec in pods(objects) if n == name)
        assert "oauth2-proxy" in spec["containers"][0]["image"]
        assert not [word for word in spec["containers"][0]["args"] if "skip-auth-r" in word]


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


def test_mlflow_answers_to_the_runs() -> None:
    values = {k: v for obj in of_kind(build("platform"), "ConfigMap") for k, v in obj["data"].items()}
    hosts = values["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert values["MLFLOW_TRACKING_URI"].removeprefix("http://") in hosts
