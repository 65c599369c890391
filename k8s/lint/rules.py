"""The tables of rules: each a function over manifests or over a gang, with its reason and its fix."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from pipeline.core.storage import Record

Node = dict[str, Any]

_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)
}


def at(node: object, *keys: str) -> Any:
    """What stands at `keys`; None where a mapping on the way is missing."""
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def sub(node: object, *keys: str) -> Node:
    """The mapping at `keys`."""
    value = at(node, *keys)
    return value if isinstance(value, dict) else {}


def rows(node: object, *keys: str) -> list[Node]:
    """The mappings in the list at `keys`; what is no mapping stands as an empty one, so that indices hold."""
    value = at(node, *keys)
    return [row if isinstance(row, dict) else {} for row in value] if isinstance(value, list) else []


def texts(node: object, *keys: str) -> list[str]:
    """The scalars in the list at `keys`, as text."""
    value = at(node, *keys)
    return [str(row) for row in value if not isinstance(row, dict | list)] if isinstance(value, list) else []


def text(node: object, *keys: str) -> str:
    """The scalar at `keys`; empty without one."""
    value = at(node, *keys)
    return "" if value is None or isinstance(value, dict | list) else str(value)


def whole(node: object, *keys: str, default: int = 0) -> int:
    """The integer at `keys`; what no field of Kubernetes could hold is none."""
    value = at(node, *keys)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else default


def labels(node: object, *keys: str) -> dict[str, str]:
    """The scalars of the mapping at `keys`, as text."""
    return {str(k): str(v) for k, v in sub(node, *keys).items() if not isinstance(v, dict | list)}


def quantity(value: object) -> float:
    """A Kubernetes quantity (1600Gi, 191450m, 8) in its base unit; 0 for what is none."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)([a-zA-Z]{0,2})", str(value).strip())
    if match is None or isinstance(value, bool) or match[2] not in _UNITS:
        return 0.0
    return min(float(match[1]) * _UNITS[match[2]], 2.0**63)


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
