"""Pod Security `restricted`: what a namespace enforces, all of its pods pass, those on GPUs included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from k8s.render import render

from . import run_job
from .admission import pod_specs
from .manifests import Object, of_kind, overlay, pods
from .render.golden import CASES

ENFORCE = "pod-security.kubernetes.io/enforce"
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
"""That `restricted` allows."""


def violations(spec: Object) -> Iterator[str]:
    """Of the profile's controls, version 1.33; an empty spec has some."""
    own = spec.get("securityContext", {})
    if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    if any(not (volume.keys() - {"name"} <= VOLUMES) for volume in spec.get("volumes", ())):
        yield "volume types"
    if own.get("sysctls"):
        yield "sysctls"
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        merged = {**own, **container.get("securityContext", {})}
        capabilities = merged.get("capabilities", {})
        if merged.get("privileged") or merged.get("allowPrivilegeEscalation") is not False:
            yield "privilege"
        if "ALL" not in capabilities.get("drop", ()) or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield "capabilities"
        if merged.get("runAsNonRoot") is not True or merged.get("runAsUser") == 0:
            yield "root"
        if merged.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccomp"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "host ports"


@pytest.mark.parametrize("case", CASES)
def test_every_gang_passes_restricted(case: str) -> None:
    for obj in render(CASES[case]):
        for spec in pod_specs(obj):
            assert list(violations(spec)) == []


@pytest.mark.parametrize("name", ["eks-spot-h200", "eks-a100", "gke"])
def test_all_pods_pass_what_their_namespace_enforces(name: str) -> None:
    enforced = {o["metadata"]["name"]: o["metadata"]["labels"][ENFORCE] for o in of_kind(overlay(name), "Namespace")}
    assert enforced == {
        "preference-tuning": "restricted",
        "preference-tuning-platform": "restricted",
        "preference-tuning-serving": "baseline",  # what KServe adds is not ours
    }
    specs = {pod.owner: pod.spec for pod in pods(overlay(name))}
    specs["a run"] = run_job.kept()["spec"]["template"]["spec"]
    assert {owner: result for owner, spec in specs.items() if (result := list(violations(spec)))} == {}
