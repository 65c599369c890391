"""The base `serving`: champion, canary, the route between them, the judges and their metrics."""

import re

import yaml

from .built import COMPONENT, build, named, selects
from .manifests import of_kind


def test_a_rollout_finds_one_route_with_both_arms() -> None:
    routes = of_kind(build("serving"), "HTTPRoute")
    assert [r["metadata"]["name"] for r in routes] == ["model"]
    (rule,) = routes[0]["spec"]["rules"]
    assert [(b["name"], b["weight"]) for b in rule["backendRefs"]] == [("champion", 100), ("canary", 0)]


def test_nothing_takes_a_gpu_before_there_is_a_model() -> None:
    objects = build("serving")
    assert [obj["spec"]["replicas"] for obj in of_kind(objects, "Deployment")] == [0, 0]
    paused = named(objects, "ScaledObject", "judge")["metadata"]["annotations"]
    assert paused == {"autoscaling.keda.sh/paused-replicas": "0"}
    rules = named(objects, "PrometheusRule", "servers")["spec"]["groups"][0]["rules"]
    (down,) = (rule["expr"] for rule in rules if rule.get("alert") == "ChampionDown")
    assert "kube_deployment_spec_replicas" in down, "none is wanted: none is missing"


def test_champion_and_canary_differ_by_their_weights_alone() -> None:
    champion, canary = (named(build("serving"), "Deployment", name) for name in ("champion", "canary"))
    same = yaml.safe_load(yaml.safe_dump(canary).replace("canary", "champion"))
    assert same == champion


def test_the_judges_are_counted_by_one_autoscaler() -> None:
    objects = build("serving")
    judge, scaled = named(objects, "InferenceService", "judge"), named(objects, "ScaledObject", "judge")
    assert judge["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "external"
    assert not {"minReplicas", "maxReplicas", "autoScaling", "scaleMetric"} & judge["spec"]["predictor"].keys()
    assert scaled["spec"]["scaleTargetRef"]["name"] == f"{judge['metadata']['name']}-predictor"
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (3, 10)


def test_rules_and_triggers_read_metrics_that_are_exported() -> None:
    """vLLM 0.31 (v1/metrics/loggers.py), its HTTP instrumentation, kube-state-metrics, and our own records."""
    known = {
        "vllm:num_requests_waiting", "vllm:e2e_request_latency_seconds_bucket", "http_requests_total",
        "kube_deployment_spec_replicas", "kube_deployment_status_replicas", "kube_deployment_status_replicas_available",
    }  # fmt: skip
    (rules,) = (obj["spec"]["groups"][0]["rules"] for obj in of_kind(build("serving"), "PrometheusRule"))
    records = {rule["record"] for rule in rules if "record" in rule}
    (trigger,) = named(build("serving"), "ScaledObject", "judge")["spec"]["triggers"]
    for text in [rule["expr"] for rule in rules] + [trigger["metadata"]["query"]]:
        bare = re.sub(r"\{[^}]*\}|\bby \([^)]*\)|\bon \([^)]*\)", "", text)
        series = {word for word in re.findall(r"[a-z_:][a-z0-9_:]+", bare) if "_" in word or ":" in word}
        assert series - {"histogram_quantile"} <= known | records, text
    monitored = of_kind(build("serving"), "ServiceMonitor")[0]["spec"]["selector"]
    arms = {
        s["metadata"]["labels"][COMPONENT]
        for s in of_kind(build("serving"), "Service")
        if selects(monitored, s["metadata"]["labels"])
    }
    assert arms == {"champion", "canary", "judge"}
