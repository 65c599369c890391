"""What a rule is: a small function over manifests, with its reason and its fix; and the registry of all of them.

Owns the shape of a finding. The rules themselves lie in the modules beside this one, by theme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from k8s.gang import Gang
from k8s.lint.manifests import Manifests
from pipeline.core.storage import Record
from pipeline.recipe import Recipe

Severity = Literal["error", "warning"]
Hits = Iterator[tuple[str, str]]
"""Where (kind/name and path), and what is wrong there, with the value that was found."""


class Violation(Record):
    """A mistake that the API server would have taken."""

    rule: str
    severity: Severity
    where: str
    """Kind/name and the path of the field."""
    problem: str
    """With the observed value."""
    reason: str
    """Why it hurts."""
    fix: str


@dataclass(frozen=True)
class Rule:
    """`check` yields where and what; its docstring is the reason, its name the id."""

    severity: Severity
    fix: str
    check: Callable[..., Hits]

    @property
    def id(self) -> str:
        return self.check.__name__.replace("_", "-")

    @property
    def reason(self) -> str:
        return " ".join((self.check.__doc__ or "").split())

    def findings(self, *subjects: Gang | Manifests | Recipe) -> Iterable[Violation]:
        for where, problem in self.check(*subjects):
            yield Violation(
                rule=self.id, severity=self.severity, where=where, problem=problem, reason=self.reason, fix=self.fix
            )


RULES: dict[str, Rule] = {}
"""Over any manifests, by id."""
GANG_RULES: dict[str, Rule] = {}
"""Over a gang and what was rendered from it, by id."""


def rule(severity: Severity, fix: str) -> Callable[[Callable[[Manifests], Hits]], Callable[[Manifests], Hits]]:
    """Register a check of manifests. Its docstring says why the mistake hurts, and how that is known."""

    def register(check: Callable[[Manifests], Hits]) -> Callable[[Manifests], Hits]:
        _add(RULES, Rule(severity, fix, check))
        return check

    return register


def gang_rule(
    severity: Severity, fix: str
) -> Callable[[Callable[[Gang, Manifests], Hits]], Callable[[Gang, Manifests], Hits]]:
    """Register a check of a gang against what was rendered from it."""

    def register(check: Callable[[Gang, Manifests], Hits]) -> Callable[[Gang, Manifests], Hits]:
        _add(GANG_RULES, Rule(severity, fix, check))
        return check

    return register


def _add(rules: dict[str, Rule], new: Rule) -> None:
    assert new.reason, f"{new.id} gives no reason"
    assert new.id not in RULES and new.id not in GANG_RULES, f"two rules are called {new.id}"
    rules[new.id] = new
