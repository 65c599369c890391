"""What ValidatingAdmissionPolicies say to a request: the API server's own CEL, over its object and its account.

Not here: mutating policies, webhooks, `authorizer` and `namespaceObject`, which no manifest of ours uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from celpy import celtypes
from celpy.adapter import json_to_cel

from k8s.lint.schemas import FAILURES, program
from k8s.lint.tree import Node, rows, sub, text, texts

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
        fails = text(spec, "failurePolicy") != "Ignore"
        given: dict[str, Any] = {
            "object": json_to_cel(request.new),
            "oldObject": json_to_cel(request.old),
            "request": json_to_cel(_as_request(request)),
        }
        reads, here = sub(binding, "spec", "paramRef"), text(binding, "spec", "paramRef", "namespace")
        if reads:
            parameters = self._parameters.get((here or request.namespace, text(reads, "name")))
            if parameters is None:
                if fails and text(reads, "parameterNotFoundAction") == "Deny":
                    yield AdmissionDenial(name, NO_PARAMETERS)
                return
            given["params"] = json_to_cel(parameters)
        try:
            if not all(_holds(text(row, "expression"), given) for row in rows(spec, "matchConditions")):
                return
        except FAILURES as error:
            if fails:
                yield AdmissionDenial(name, f"a match condition resulted in error: {error.args[0]}")
            return
        variables = _Variables(spec, given)
        for row in rows(spec, "validations"):
            expression = text(row, "expression")
            try:
                held = _holds(expression, variables.for_(expression))
            except FAILURES as error:
                if fails:
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
