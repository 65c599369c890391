"""The lint: mistakes that an API server takes and that a training dies of."""

from collections.abc import Sequence
from typing import Any

from k8s.gang import Gang
from k8s.lint import gangs, nodes, queues, recipes
from k8s.lint.manifests import Manifests
from k8s.lint.rules import GANG_RULES, RULES, Violation

__all__ = ["GANG_RULES", "RULES", "THEMES", "Violation", "lint_gang", "lint_objects"]

THEMES = (recipes, gangs, queues, nodes)
"""Importing a theme registers its rules."""


def lint_objects(objects: Sequence[dict[str, Any]]) -> list[Violation]:
    """Every mistake of these manifests, which are looked at as one set: errors first, then by rule."""
    seen = Manifests(objects)
    return _sorted([finding for rule in RULES for finding in rule.findings(seen)])


def lint_gang(gang: Gang, objects: Sequence[dict[str, Any]]) -> list[Violation]:
    """Every mistake of a gang, and of what was rendered from it (`lint_objects`)."""
    ours = [finding for rule in GANG_RULES for finding in rule.findings(gang)]
    return _sorted([*ours, *lint_objects(objects)])


def _sorted(findings: list[Violation]) -> list[Violation]:
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.severity)
