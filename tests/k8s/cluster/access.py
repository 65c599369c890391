"""Accounts of the tests' API server: what RBAC lets them ask, and what admission policies let them write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .faults import Call
from .kinds import KINDS, Object, Refused

Right = tuple[str, str, str]
"""API group, resource (`pods/log`), verb."""
Admission = Callable[[str, Call, Object | None, Object | None], str]
"""Of the operation (CREATE, UPDATE, DELETE), the new object and the old: why it is refused, or ""."""


@dataclass(frozen=True)
class Account:
    """Of one namespace. `rights`: of that namespace."""

    name: str
    namespace: str
    rights: frozenset[Right]
    admission: Admission

    def authorize(self, call: Call, verb: str = "") -> None:
        """Raises Refused 403. `verb`: another than the call's."""
        if not call.kind:  # the discovery
            return
        of, verb = KINDS[call.kind], verb or call.verb
        resource = f"{of.plural}/{call.subresource}" if call.subresource else of.plural
        if call.namespace == self.namespace and (of.group, resource, verb) in self.rights:
            return
        where = f'in API group "{of.group}" in the namespace "{call.namespace}"'
        text = f'is forbidden: User "{self.name}" cannot {verb} resource "{resource}" {where}'
        details = {"name": call.name, "kind": of.plural}
        raise Refused(403, "Forbidden", f'{of.resource} "{call.name}" {text}', details)

    def admit(self, operation: str, call: Call, new: Object | None, old: Object | None) -> None:
        """Before a write is stored. Raises Refused: 403 where an apply makes what the account may not create, 422 by a
        policy."""
        if operation == "CREATE" and call.verb == "patch":
            self.authorize(call, "create")
        if words := self.admission(operation, call, new, old):
            of = KINDS[call.kind]
            details = {"name": call.name, "kind": of.plural}
            raise Refused(422, "Invalid", f'{of.resource} "{call.name}" is forbidden: {words}', details)


def anybody(operation: str, call: Call, new: Object | None, old: Object | None) -> None:
    """Admits, as for the tests themselves."""
