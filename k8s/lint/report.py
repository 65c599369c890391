"""The lint's findings as JSON and as SARIF 2.1.0, for a pipeline's checks and for a review tool.

Owns where a finding lies: the file of its object and the line on which that object begins; a recipe's first line for
what is wrong with the gang that it renders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from k8s.lint.rules import Violation

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class FaultPlace(NamedTuple):
    """Of an object in a file of manifests."""

    file: str
    line: int
    """From 1."""


class Linted(NamedTuple):
    """What was looked at as one set: a recipe's gang with the manifests, or the manifests alone."""

    title: str
    place: FaultPlace
    charges: Sequence[str]
    """What Kueue would charge (k8s/lint/charges.py), a line for each pod set."""
    findings: Sequence[Violation]


def as_json(subjects: Sequence[Linted], places: Mapping[str, FaultPlace]) -> str:
    """One object: findings with file and line, and their number by severity."""
    findings = [
        finding.model_dump() | {"subject": subject.title, **_place(finding, subject, places)._asdict()}
        for subject in subjects
        for finding in subject.findings
    ]
    errors = sum(finding["severity"] == "error" for finding in findings)
    charged = [{"subject": subject.title, "charges": list(subject.charges)} for subject in subjects if subject.charges]
    body = {"errors": errors, "warnings": len(findings) - errors, "findings": findings, "charged": charged}
    return json.dumps(body, indent=2)


def as_sarif(subjects: Sequence[Linted], places: Mapping[str, FaultPlace]) -> str:
    """One run, its rules those that found something."""
    pairs = [(subject, finding) for subject in subjects for finding in subject.findings]
    rules = {finding.rule: finding for _, finding in pairs}
    index = {name: i for i, name in enumerate(rules)}
    driver = {
        "name": "preference-tuning-lint",
        "rules": [
            {
                "id": name,
                "shortDescription": {"text": finding.reason},
                "help": {"text": finding.fix},
                "defaultConfiguration": {"level": finding.severity},
            }
            for name, finding in rules.items()
        ],
    }
    results = [_result(finding, index, _place(finding, subject, places)) for subject, finding in pairs]
    body = {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(body, indent=2)


def _result(finding: Violation, index: Mapping[str, int], place: FaultPlace) -> dict[str, Any]:
    physical = {"artifactLocation": {"uri": quote(place.file)}, "region": {"startLine": place.line}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index[finding.rule],
        "level": finding.severity,
        "message": {"text": f"{finding.where}: {finding.problem}. {finding.fix}"},
        "locations": [
            {"physicalLocation": physical, "logicalLocations": [{"fullyQualifiedName": finding.where}]},
        ],
    }


def _place(finding: Violation, subject: Linted, places: Mapping[str, FaultPlace]) -> FaultPlace:
    """`places`: by kind/name, as a finding begins."""
    return places.get(finding.where.split(" ")[0], subject.place)
