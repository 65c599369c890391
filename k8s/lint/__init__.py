"""The lint: what the API server takes and a training gang must not have, each rule with its reason and its fix.

Owns mistakes of meaning: a gang that is not a gang, a pre-emption that ends the run, names that no pod can bear.
Schemas (unknown fields, wrong types) are the API server's, which is asked with fieldValidation=Strict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k8s.gang import Gang
from k8s.lint import gang as _gang
from k8s.lint import karpenter, kueue, names, pools, rayjob, resources, restarts, routing, script, security, volcano
from k8s.lint.manifests import Manifests
from k8s.lint.rules import GANG_RULES, RULES, Rule, Violation

__all__ = ["GANG_RULES", "RULES", "Rule", "Violation", "lint_gang", "lint_objects"]

THEMES = (restarts, volcano, rayjob, kueue, karpenter, pools, resources, security, script, names, routing, _gang)
"""Importing a theme registers its rules."""


def lint_objects(objects: Sequence[dict[str, Any]]) -> list[Violation]:
    """Every mistake of these manifests, which are looked at as one set: errors first, then by rule."""
    seen = Manifests(objects)
    return _sorted([finding for rule in RULES.values() for finding in rule.findings(seen)])


def lint_gang(gang: Gang, objects: Sequence[dict[str, Any]]) -> list[Violation]:
    """Every mistake of a gang and of what was rendered from it: `lint_objects`, and the rules against the recipe."""
    seen = Manifests(objects)
    ours = [finding for rule in GANG_RULES.values() for finding in rule.findings(gang, seen)]
    return _sorted([*ours, *lint_objects(objects)])


def _sorted(findings: list[Violation]) -> list[Violation]:
    order = {name: i for i, name in enumerate([*GANG_RULES, *RULES])}
    return sorted(dict.fromkeys(findings), key=lambda f: (f.severity, order[f.rule]))
