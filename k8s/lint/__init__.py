"""The lint: what the API server takes and a training gang must not have, each rule with its reason and its fix.

Owns mistakes of meaning: a gang that is not a gang, a pre-emption that ends the run, names that no pod can bear. What
the API server itself refuses (unknown fields, wrong types, rules of a definition) is asked of schemas where there are
any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from k8s.gang import Gang
from k8s.lint import (
    doors,
    karpenter,
    kueue,
    marks,
    names,
    policies,
    pools,
    rayjob,
    refusals,
    resources,
    restarts,
    rights,
    routing,
    script,
    security,
)
from k8s.lint import gang as _gang
from k8s.lint import volcano as _volcano
from k8s.lint.manifests import Manifests
from k8s.lint.pods import where
from k8s.lint.rules import GANG_RULES, RULES, Rule, Violation

__all__ = ["GANG_RULES", "RULES", "Rule", "Violation", "lint_admission", "lint_gang", "lint_objects", "lint_schemas"]

THEMES = (
    restarts, _volcano, rayjob, kueue, karpenter, pools, resources, refusals, security, marks, script, names, routing,
    rights, policies, doors, _gang,
)  # fmt: skip
"""Importing a theme registers its rules."""


def lint_objects(objects: Sequence[dict[str, Any]]) -> list[Violation]:
    """Every mistake of these manifests, which are looked at as one set: errors first, then by rule."""
    seen = Manifests(objects)
    return _sorted([finding for rule in RULES.values() for finding in rule.findings(seen)])


class Definitions(Protocol):
    """Schemas (k8s/lint/schemas.py), as far as the lint asks them."""

    def known(self, obj: dict[str, Any]) -> bool:
        """Whether there is a schema of the object's kind."""
        ...

    def problems(self, obj: dict[str, Any]) -> list[str]:
        """`path: reason` each; empty: nothing is wrong."""
        ...


def lint_schemas(objects: Sequence[dict[str, Any]], schemas: Definitions) -> list[Violation]:
    """What the API server refuses, of the kinds that have a schema."""
    return [
        Violation(
            rule="schema",
            severity="error",
            where=where(obj, path),
            problem=problem,
            reason="The API server refuses the object or, not asked to be strict, drops what it does not know.",
            fix="Write what this version of the kind has: kubectl explain shows it.",
        )
        for obj in Manifests(objects).objects
        if schemas.known(obj)
        for path, _, problem in (text.partition(": ") for text in schemas.problems(obj))
    ]


def lint_admission(objects: Sequence[dict[str, Any]], manifests: Sequence[dict[str, Any]]) -> list[Violation]:
    """What the ValidatingAdmissionPolicies among the manifests would refuse of a gang's objects. Raises ImportError
    without the extra `lint`."""
    from k8s.lint.admission import Policies, of_launcher

    policies = Policies(manifests)
    return [
        Violation(
            rule="admission",
            severity="error",
            where=where(obj, "spec"),
            problem=f"{denial.policy}: {denial.message}",
            reason="The API server refuses the launch.",
            fix="Change the recipe, or launch-limits (k8s/manifests/bases/admission).",
        )
        for obj in objects
        for denial in policies.denials(of_launcher(obj))
    ]


def lint_gang(gang: Gang, objects: Sequence[dict[str, Any]]) -> list[Violation]:
    """Every mistake of a gang and of what was rendered from it: `lint_objects`, and the rules against the recipe."""
    seen = Manifests(objects)
    ours = [finding for rule in GANG_RULES.values() for finding in rule.findings(gang, seen)]
    return _sorted([*ours, *lint_objects(objects)])


def _sorted(findings: list[Violation]) -> list[Violation]:
    order = {name: i for i, name in enumerate([*GANG_RULES, *RULES])}
    return sorted(dict.fromkeys(findings), key=lambda f: (f.severity, order[f.rule]))
