"""Mistakes in what bounds a namespace: admission policies, their bindings, quotas and ranges."""

from __future__ import annotations

from tests.k8s.lint.edits import Mistake, more


def policy(what: str, spec: str) -> Mistake:
    head = "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: more}\n"
    return more(what, "policy-refused", f"{head}spec: {spec}")


def binding(what: str, spec: str) -> Mistake:
    kinds = "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy"
    there = f"{kinds}\nmetadata: {{name: more}}\nspec: {{validations: [{{expression: 'true'}}]}}\n---\n"
    there += "{apiVersion: v1, kind: ConfigMap, metadata: {name: limits, namespace: a}}\n---\n"
    return more(what, "policy-unbound", f"{there}{kinds}Binding\nmetadata: {{name: more}}\nspec: {spec}")


def bound(what: str, kind: str, spec: str) -> Mistake:
    text = f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: more, namespace: a}}\nspec: {spec}"
    return more(what, "limits-refused", text)


POLICIES: list[Mistake] = [
    policy("an expression that no CEL reads", "{validations: [{expression: 'object.spec.('}]}"),
    policy("a variable that is defined after it is used",
           "{variables: [{name: a, expression: variables.b}, {name: b, expression: '1'}]}"),
    policy("a failure policy of no such name", "{failurePolicy: Failing, validations: [{expression: 'true'}]}"),
    binding("a policy that is not there", "{policyName: mor, validationActions: [Deny]}"),
    binding("a denial that warns", "{policyName: more, validationActions: [Deny, Warn]}"),
    binding("parameters by name and by selector",
            "{policyName: more, validationActions: [Deny], paramRef: {name: limits, selector: {}}}"),
    binding("parameters that are not there",
            "{policyName: more, validationActions: [Deny], paramRef: {name: limit, namespace: a}}"),
    bound("a quota of no quantity", "ResourceQuota", "{hard: {pods: many}}"),
    bound("a scope of no such name", "ResourceQuota", "{hard: {pods: 1}, scopes: [Terminated]}"),
    bound("a range of no such type", "LimitRange", "{limits: [{type: Containers}]}"),
    bound("a default over the most", "LimitRange", "{limits: [{type: Container, default: {cpu: 8}, max: {cpu: 4}}]}"),
    bound("a least of no quantity", "LimitRange", "{limits: [{type: Container, min: {cpu: few}}]}"),
]  # fmt: skip
