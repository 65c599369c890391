"""The tables of rules: each a function over manifests or over a gang, with its reason and its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from pipeline.core.storage import Record

Severity = Literal["error", "warning"]
Hits = Iterator[tuple[str, str]]
"""Where (kind/name and path), and what is wrong there, with the value that was found."""


class Violation(Record):
    """A mistake, with its reason and its fix. `where`: kind/name and the path of the field."""

    rule: str
    severity: Severity
    where: str
    problem: str
    reason: str
    fix: str


class Rule(NamedTuple):
    """`check`: of manifests or of a gang; its docstring is the reason, its name the id."""

    check: Callable[[Any], Hits]
    fix: str
    severity: Severity

    @property
    def id(self) -> str:
        return self.check.__name__.replace("_", "-")

    def findings(self, subject: object) -> Iterable[Violation]:
        reason = " ".join((self.check.__doc__ or "").split())
        for place, problem in self.check(subject):
            yield Violation(
                rule=self.id, severity=self.severity, where=place, problem=problem, reason=reason, fix=self.fix
            )


RULES: list[Rule] = []
"""Over any manifests."""
GANG_RULES: list[Rule] = []
"""Over the gang that a recipe asks for."""


def rule(
    fix: str, severity: Severity = "error", table: list[Rule] = RULES
) -> Callable[[Callable[[Any], Hits]], Callable[[Any], Hits]]:
    """Add a check to a table."""

    def register(check: Callable[[Any], Hits]) -> Callable[[Any], Hits]:
        table.append(Rule(check, fix, severity))
        return check

    return register
