"""The policies of the base `admission`, asked as the API server asks them, and what operators and defaults add.

Each policy refuses what it cannot decide (`failurePolicy: Fail`), as test_rights.py has it. The expressions are the
API server's own CEL.
"""

import copy
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from celpy import celtypes
from celpy.adapter import json_to_cel

from k8s.client import resource_of
from k8s.lint.rules import Node, rows, sub, text, texts
from k8s.lint.schemas import FAILURES, program

from .manifests import MANIFESTS, Object, pod_specs

NAMESPACE = "kubernetes.io/metadata.name"
NO_PARAMETERS = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"


LAUNCHER = "system:serviceaccount:preference-tuning:launcher"
"""The account of runs (k8s/manifests/bases/rbac)."""
RUNS = "preference-tuning"
DAEMON = "system:serviceaccount:preference-tuning-platform:daemon"
WEBSERVER = "system:serviceaccount:preference-tuning-platform:webserver"


class Policies:
    """The policies that are bound to a namespace, with the ConfigMaps that they read."""

    def __init__(self, objects: Sequence[Node]) -> None:
        of = {kind: [o for o in objects if text(o, "kind") == kind] for kind in (
            "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap",
        )}  # fmt: skip
        self._policies = {text(o, "metadata", "name"): o for o in of["ValidatingAdmissionPolicy"]}
        self._bindings = of["ValidatingAdmissionPolicyBinding"]
        self._parameters = {(text(o, "metadata", "namespace"), text(o, "metadata", "name")): o for o in of["ConfigMap"]}

    def refusals(self, user: str, obj: Object, operation: str) -> Iterator[str]:
        """What each rule that refuses the write says, in the order of the policies' bindings."""
        of = resource_of(obj)
        request = {
            "operation": operation,
            # The API server leaves an empty name out: one that it is to make (generateName).
            **({"name": obj["metadata"]["name"]} if obj["metadata"].get("name") else {}),
            "kind": {"group": of.group, "kind": obj["kind"]},
            "resource": {"group": of.group, "resource": of.plural},
            "userInfo": {"username": user},
        }
        given = {"object": None if operation == "DELETE" else obj, "oldObject": None, "request": request}
        for binding in self._bindings:
            policy = self._policies.get(text(binding, "spec", "policyName"))
            here = sub(binding, "spec", "matchResources", "namespaceSelector", "matchLabels").get(NAMESPACE, RUNS)
            denies = "Deny" in texts(binding, "spec", "validationActions")
            if policy is not None and denies and here == RUNS and _matches(sub(policy, "spec"), request):
                yield from self._of(binding, sub(policy, "spec"), {k: json_to_cel(v) for k, v in given.items()})

    def _of(self, binding: Node, spec: Node, given: dict[str, Any]) -> Iterator[str]:
        if reads := sub(binding, "spec", "paramRef"):
            parameters = self._parameters.get((text(reads, "namespace") or RUNS, text(reads, "name")))
            if parameters is None:
                yield NO_PARAMETERS
                return
            given["params"] = json_to_cel(parameters)
        if not all(program(text(row, "expression")).evaluate(given) for row in rows(spec, "matchConditions")):
            return
        variables = _Variables(spec, given)
        for row in rows(spec, "validations"):
            expression = text(row, "expression")
            try:
                held = program(expression).evaluate(variables.for_(expression))
            except FAILURES as error:
                yield f"expression '{expression}' resulted in error: {error.args[0]}"
            else:
                if not held:
                    yield text(row, "message").partition(":")[0]


class _Variables:
    """Of a policy; each is worked out when an expression first names it."""

    def __init__(self, spec: Node, given: dict[str, Any]) -> None:
        self._expressions = {text(row, "name"): text(row, "expression") for row in rows(spec, "variables")}
        self._given, self._values = given, celtypes.MapType()

    def for_(self, expression: str) -> dict[str, Any]:
        for name, own in self._expressions.items():
            key = celtypes.StringType(name)
            if f"variables.{name}" in expression and key not in self._values:
                context = self.for_(own)
                self._values[key] = program(own).evaluate(context)
        return {**self._given, "variables": self._values}


def _matches(spec: Node, request: Node) -> bool:
    group, plural = request["resource"]["group"], request["resource"]["resource"]
    return any(
        group in texts(rule, "apiGroups")
        and plural in texts(rule, "resources")
        and request["operation"] in texts(rule, "operations")
        for rule in rows(spec, "matchConstraints", "resourceRules")
    )


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


def refusals(policies: Policies, user: str, obj: Object, operation: str = "CREATE") -> list[str]:
    """The rules that refuse it. An expression that fails is shown whole."""
    return list(policies.refusals(user, obj, operation))


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
