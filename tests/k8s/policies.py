"""The policies of the base `admission`, asked as the API server asks them, and what operators and defaults add."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path

import yaml

from k8s.client import resource_of

from .admission import pod_specs
from .manifests import MANIFESTS, Object
from .verdicts import LAUNCHER as LAUNCHER
from .verdicts import AdmissionDenial, AdmissionRequest, Policies

RUNS = "preference-tuning"
DAEMON = "system:serviceaccount:preference-tuning-platform:daemon"
WEBSERVER = "system:serviceaccount:preference-tuning-platform:webserver"


def plain(folder: Path) -> list[Object]:
    """The objects of a folder's files, without kustomize."""
    files = sorted(file for file in folder.glob("*.yaml") if file.name != "kustomization.yaml")
    return [obj for file in files for obj in yaml.safe_load_all(file.read_text())]


@functools.cache
def shipped(**limits: str) -> Policies:
    """The base's, some values of its launch-limits replaced."""
    objects = plain(MANIFESTS / "bases" / "admission")
    (given,) = (obj for obj in objects if obj["metadata"]["name"] == "launch-limits")
    given["data"] |= limits
    return Policies(objects)


LAX = [("policy", "failurePolicy", "Ignore"), ("binding", "parameterNotFoundAction", "Allow")]


def lax(objects: Sequence[Object], section: str, key: str, value: str) -> list[Object]:
    """Admission's objects with this one of LAX in the policy of gangs or its binding; without the launch-limits for the
    latter."""
    result = copy.deepcopy([o for o in objects if section == "policy" or o["kind"] != "ConfigMap"])
    for obj in result:
        if obj["metadata"]["name"] == "preference-tuning-gangs":
            spec = obj["spec"]
            if section == "policy" and "validations" in spec:
                spec[key] = value
            elif section == "binding" and "paramRef" in spec:
                spec["paramRef"][key] = value
    return result


def asks(user: str, obj: Object, operation: str = "CREATE", old: Object | None = None) -> AdmissionRequest:
    """What admission is given when this account applies it."""
    resource = resource_of(obj)
    return AdmissionRequest(
        operation=operation,
        user=user,
        resource=(resource.group, resource.plural),
        kind=obj["kind"],
        namespace=RUNS,
        name=obj["metadata"].get("name", ""),
        new=None if operation == "DELETE" else obj,
        old=old,
    )


def refusals(policies: Policies, user: str, obj: Object, operation: str = "CREATE") -> list[str]:
    """The rules that refuse it. An expression that fails is not one of ours, and shown whole."""
    return [each.rule if not _failed(each) else each.message for each in policies.denials(asks(user, obj, operation))]


def _failed(denial: AdmissionDenial) -> bool:
    return "resulted in error" in denial.message


def defaulted(objects: Sequence[Object]) -> list[Object]:
    """As validating admission sees them: with the defaults of the API server, of each CRD, and of JobSet's and Kueue's
    webhooks."""
    result = copy.deepcopy(list(objects))
    for obj in result:
        kind, spec = obj["kind"], obj["spec"]
        if kind in ("JobSet", "RayJob"):
            spec["suspend"] = True
        if kind == "JobSet":
            spec |= {"successPolicy": {"operator": "All"}, "startupPolicy": {"startupPolicyOrder": "AnyOrder"}}
            spec["failurePolicy"]["restartStrategy"] = "Recreate"
            spec["replicatedJobs"][0]["groupName"] = "default"
        if kind == "RayJob":
            for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
                group |= {"numOfHosts": 1, "priority": 0, "scaleStrategy": {}}
        if obj["apiVersion"] == "batch/v1":
            spec |= {"suspend": False, "manualSelector": False, "podReplacementPolicy": "Failed"}
            spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": "5f"}}
            spec["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] = obj["metadata"]["name"]
        for pod in pod_specs(spec):
            pod |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
            pod |= {"serviceAccount": pod["serviceAccountName"]}
            for container in pod["containers"]:
                container |= {"terminationMessagePath": "/dev/termination-log"}
                for variable in container.get("env", ()):
                    variable.get("valueFrom", {}).get("fieldRef", {})["apiVersion"] = "v1"
    return result
