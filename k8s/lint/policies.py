"""Rules on what bounds a namespace: admission policies that would not decide, quotas and ranges that nothing meets."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from k8s.lint.manifests import Manifests
from k8s.lint.pods import where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, is_quantity, quantity, rows, sub, text, texts

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
FAILURE = {"", "Fail", "Ignore"}
SCOPES = {"BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass", "Terminating"}
RANGES = {"Container", "PersistentVolumeClaim", "Pod"}
_VARIABLE = re.compile(r"\bvariables\.(\w+)")


@rule("error", fix="Mend the expression, name variables before they are used, and let failurePolicy be Fail or Ignore.")
def policy_refused(seen: Manifests) -> Hits:
    """The API server refuses the policy, and what it was to bound is not bounded: the binding to a policy that is not
    there admits everything."""
    for policy in seen.of(POLICY):
        if (on_error := text(policy, "spec", "failurePolicy")) not in FAILURE:
            yield where(policy, "spec.failurePolicy"), repr(on_error)
        defined: set[str] = set()
        for place, row in _expressions(policy):
            expression = text(row, "expression")
            for name in sorted({*_VARIABLE.findall(expression)} - defined):
                yield where(policy, place), f"no variable {name!r} before it"
            if problem := _unread(expression):
                yield where(policy, place), problem
            defined |= {text(row, "name")} if place.startswith("spec.variables") else set()


@rule("error", fix="Name a policy and parameters of the manifests; deny, or warn; one name or a selector.")
def policy_unbound(seen: Manifests) -> Hits:
    """A binding to a policy that is not there is taken and bounds nothing; to parameters that are not there it denies
    everything, or nothing."""
    policies = {text(policy, "metadata", "name") for policy in seen.of(POLICY)}
    maps = {(text(o, "metadata", "namespace"), text(o, "metadata", "name")) for o in seen.of("ConfigMap", "v1")}
    for binding in seen.of(BINDING):
        if (name := text(binding, "spec", "policyName")) not in policies:
            yield where(binding, "spec.policyName"), f"no policy {name!r}"
        if {"Deny", "Warn"} <= {*texts(binding, "spec", "validationActions")}:
            yield where(binding, "spec.validationActions"), "Deny and Warn"
        reads = sub(binding, "spec", "paramRef")
        if {"name", "selector"} <= reads.keys():
            yield where(binding, "spec.paramRef"), "a name and a selector"
        place = text(reads, "namespace"), text(reads, "name")
        if all(place) and any(space == place[0] for space, _ in maps) and place not in maps:
            yield where(binding, "spec.paramRef"), f"no ConfigMap {place[1]!r} in {place[0]!r}"


@rule("error", fix="Write quantities, scopes and types that there are, and min <= default <= max.")
def limits_refused(seen: Manifests) -> Hits:
    """The API server refuses the ResourceQuota or LimitRange: the namespace stays as it was, or has none."""
    for quota in seen.of("ResourceQuota", "v1"):
        for name, value in sub(quota, "spec", "hard").items():
            if not is_quantity(value):
                yield where(quota, f"spec.hard.{name}"), repr(value)
        for scope in sorted({*texts(quota, "spec", "scopes")} - SCOPES):
            yield where(quota, "spec.scopes"), repr(scope)
    for limits in seen.of("LimitRange", "v1"):
        for i, row in enumerate(rows(limits, "spec", "limits")):
            if text(row, "type") not in RANGES:
                yield where(limits, f"spec.limits[{i}].type"), repr(text(row, "type"))
            for problem in _contradictions(row):
                yield where(limits, f"spec.limits[{i}]"), problem


def _contradictions(row: Node) -> Iterator[str]:
    order = ("min", "defaultRequest", "default", "max")
    for i, low in enumerate(order):
        for high in order[i + 1 :]:
            for name in sorted({*sub(row, low)} & {*sub(row, high)}, key=str):
                less, more = sub(row, low)[name], sub(row, high)[name]
                if quantity(less) > quantity(more):
                    yield f"{name}: {low} {less} over {high} {more}"
    for side in order:
        yield from (f"{side}.{name}: {value!r}" for name, value in sub(row, side).items() if not is_quantity(value))


def _expressions(policy: Node) -> Iterator[tuple[str, Node]]:
    """In the order in which they may name variables, with their places."""
    for part in ("matchConditions", "variables", "validations"):
        for i, row in enumerate(rows(policy, "spec", part)):
            yield f"spec.{part}[{i}]", row


def _unread(expression: str) -> str:
    """Why it is no CEL; "" where it is, and without the extra `lint`."""
    if importlib.util.find_spec("celpy") is None:
        return ""
    from celpy.celparser import CELParseError

    from k8s.lint.cel import program

    try:
        program(expression)
    except CELParseError:
        return f"no CEL: {expression[:80]!r}"
    return ""
