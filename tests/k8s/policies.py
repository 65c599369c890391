"""The policies of the base `admission`, asked as the API server asks them, and what operators and defaults add.

Each policy refuses what it cannot decide (`failurePolicy: Fail`), as test_rights.py has it. The expressions are the
API server's own CEL.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from celpy import celtypes
from celpy.adapter import json_to_cel

from k8s.client import resource_of
from k8s.lint.schemas import FAILURES, program
from k8s.lint.tree import Node, rows, sub, text, texts

from .admission import pod_specs
from .manifests import MANIFESTS, Object

NAMESPACE = "kubernetes.io/metadata.name"
NO_PARAMETERS = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"


class AdmissionRequest(NamedTuple):
    """A write as admission sees it. `resource`: group and plural."""

    operation: str
    """CREATE, UPDATE, DELETE."""
    user: str
    resource: tuple[str, str]
    kind: str
    namespace: str
    name: str
    new: Node | None
    """None for DELETE."""
    old: Node | None = None
    """None for CREATE."""


LAUNCHER = "system:serviceaccount:preference-tuning:launcher"
"""The account of runs (k8s/manifests/bases/rbac)."""


class AdmissionDenial(NamedTuple):
    """Of one rule of one policy."""

    policy: str
    message: str
    """The rule's own, or the expression and what failed in it."""

    @property
    def rule(self) -> str:
        """What our messages begin with."""
        return self.message.partition(":")[0]


class Policies:
    """The policies that are bound to a namespace, with the ConfigMaps that they read."""

    def __init__(self, objects: Sequence[Node]) -> None:
        of = {kind: [o for o in objects if text(o, "kind") == kind] for kind in (
            "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap",
        )}  # fmt: skip
        self._policies = {text(o, "metadata", "name"): o for o in of["ValidatingAdmissionPolicy"]}
        self._bindings = of["ValidatingAdmissionPolicyBinding"]
        self._parameters = {(text(o, "metadata", "namespace"), text(o, "metadata", "name")): o for o in of["ConfigMap"]}

    def denials(self, request: AdmissionRequest) -> list[AdmissionDenial]:
        """Every rule that refuses it, in the order of the policies' bindings; empty: it is admitted."""
        return [denial for binding in self._bindings for denial in self._of(binding, request)]

    def _of(self, binding: Node, request: AdmissionRequest) -> Iterator[AdmissionDenial]:
        name = text(binding, "spec", "policyName")
        policy = self._policies.get(name)
        if policy is None or "Deny" not in texts(binding, "spec", "validationActions"):
            return
        spec, selector = sub(policy, "spec"), sub(binding, "spec", "matchResources", "namespaceSelector", "matchLabels")
        if selector.get(NAMESPACE, request.namespace) != request.namespace or not _matches(spec, request):
            return
        given: dict[str, Any] = {
            "object": json_to_cel(request.new),
            "oldObject": json_to_cel(request.old),
            "request": json_to_cel(_as_request(request)),
        }
        reads, here = sub(binding, "spec", "paramRef"), text(binding, "spec", "paramRef", "namespace")
        if reads:
            parameters = self._parameters.get((here or request.namespace, text(reads, "name")))
            if parameters is None:
                yield AdmissionDenial(name, NO_PARAMETERS)
                return
            given["params"] = json_to_cel(parameters)
        if not all(_holds(text(row, "expression"), given) for row in rows(spec, "matchConditions")):
            return
        variables = _Variables(spec, given)
        for row in rows(spec, "validations"):
            expression = text(row, "expression")
            try:
                held = _holds(expression, variables.for_(expression))
            except FAILURES as error:
                yield AdmissionDenial(name, f"expression '{expression}' resulted in error: {error.args[0]}")
                continue
            if not held:
                yield AdmissionDenial(name, text(row, "message") or f"failed expression: {expression}")


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


def _holds(expression: str, given: dict[str, Any]) -> bool:
    return bool(program(expression).evaluate(given))


def _matches(spec: Node, request: AdmissionRequest) -> bool:
    group, plural = request.resource
    return any(
        group in texts(rule, "apiGroups") and plural in texts(rule, "resources") and request.operation in texts(
            rule, "operations")
        for rule in rows(spec, "matchConstraints", "resourceRules")
    )  # fmt: skip


def _as_request(request: AdmissionRequest) -> Node:
    return {
        "operation": request.operation,
        # The API server leaves an empty name out: one that it is to make (generateName).
        **({"name": request.name} if request.name else {}),
        "kind": {"group": request.resource[0], "kind": request.kind},
        "resource": {"group": request.resource[0], "resource": request.resource[1]},
        "userInfo": {"username": request.user},
    }


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
