"""Recording rules and dashboard of the deployment: each series that they read is one that something exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from k8s.prometheus import SERVERS
from pipeline.rollout.gateway.app import exposition
from pipeline.rollout.gateway.split import GatewayState

from .manifests import MANIFESTS

MONITORING = MANIFESTS / "bases" / "monitoring"
RULES = (
    MONITORING / "deployment.yaml",
    MANIFESTS / "bases" / "serving" / "monitoring.yaml",
    MONITORING / "training.yaml",
)
OTHERS = {
    # vLLM's servers, beside what the rollout reads (k8s/prometheus.py); and its HTTP instrumentation
    "vllm:num_requests_waiting", "http_requests_total",
    # kube-state-metrics, the kubelet and the JobSet controller, as the alerts of training have them
    "kube_pod_status_phase", "kube_pod_created", "kubelet_volume_stats_available_bytes",
    "kubelet_volume_stats_capacity_bytes", "kube_deployment_spec_replicas", "kube_deployment_status_replicas",
    "kube_deployment_status_replicas_available",
}  # fmt: skip
WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LANGUAGE = {"and", "by", "on", "sum", "max", "min", "rate", "increase", "changes", "clamp_min", "histogram_quantile"}


def groups(path: Path) -> list[dict[str, Any]]:
    (rule,) = [
        each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each["kind"] == "PrometheusRule"
    ]
    return rule["spec"]["groups"]


def rules(path: Path) -> list[dict[str, str]]:
    return [rule for group in groups(path) for rule in group["rules"]]


def series(expression: str) -> set[str]:
    """Names of the series of an expression: what is no label, string, duration, number or word of the language."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|without|ignoring) ?\([^)]*\)", "", bare)
    return set(WORDS.findall(bare)) - LANGUAGE


def exported() -> set[str]:
    """What the gateway says, from its own code, and what the servers and the cluster say."""
    none = {"split": None, "expired": False, "refused": "", "slots": (), "slots_fault": "", "recorder_fault": ""}
    state = GatewayState.model_validate({**none, "served": 0, "recorded": 0, "unrecorded": 0, "pid": 1})
    own = re.findall(r"^# TYPE (\w+)", exposition(state, "desk"), re.MULTILINE)
    return {*own, SERVERS.requests, SERVERS.latency} | OTHERS


def dashboard() -> dict[str, Any]:
    return json.loads((MONITORING / "dashboard.json").read_text())


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in dashboard()["panels"] if panel["type"] != "row")


def test_every_series_that_is_read_is_exported_or_recorded() -> None:
    """By a rule or a panel."""
    recorded = {rule["record"] for path in RULES for rule in rules(path) if "record" in rule}
    read = [(rule.get("record") or rule["alert"], rule["expr"]) for path in RULES[:2] for rule in rules(path)]
    read += [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    for name, expression in read:
        assert series(expression) and series(expression) <= exported() | recorded, (name, series(expression))
