"""What goes wrong between a client and the API server: refusals, errors, hangs, connections that end too early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from .kinds import KINDS, Refused

When = Literal["before", "after"]
REASONS = {
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "is forbidden: User cannot {verb} resource"),
    404: ("NotFound", "not found"),
    409: ("Conflict", "the object has been modified; please apply your changes to the latest version and try again"),
    410: ("Expired", "The provided continue parameter is too old"),
    422: ("Invalid", "is invalid"),
    429: ("TooManyRequests", "The server has received too many requests and has asked us to try again later"),
    500: ("InternalError", "Internal error occurred: etcdserver: leader changed"),
    502: ("", "Bad Gateway"),
    503: ("ServiceUnavailable", "The server is currently unable to handle the request"),
    504: ("Timeout", "The server was unable to return a response in the time allotted"),
}


class Call(NamedTuple):
    """What a request asks for."""

    verb: str
    """get, list, watch, create, update, patch, delete, deletecollection."""
    kind: str
    """Key of KINDS; "" for /version and the discovery."""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass
class Fault:
    """One rule: which calls it meets, and what it does to them. Patterns as in file names."""

    verb: str = "*"
    kind: str = "*"
    name: str = "*"
    subresource: str = "*"
    nth: int = 1
    """The first of the calls that match, which it meets."""
    times: int = 1
    """How many it meets from there; 0: all."""
    hang_s: float = 0.0
    """Wait before anything else."""
    status: int = 0
    """Answer this instead of handling the call."""
    drop: When | Literal[""] = ""
    """End the connection before the call is handled (it never arrived) or after (its answer never arrived)."""
    seen: int = 0
    """Calls that matched so far."""

    def meets(self, call: Call) -> bool:
        """Count a call that matches; True when this is one of those that it meets."""
        patterns = (self.verb, self.kind, self.name, self.subresource)
        values = (call.verb, call.kind, call.name, call.subresource)
        if not all(fnmatchcase(value, pattern) for value, pattern in zip(values, patterns, strict=True)):
            return False
        self.seen += 1
        return self.seen >= self.nth and (not self.times or self.seen < self.nth + self.times)

    def refusal(self, call: Call) -> Refused:
        """The answer of its status."""
        reason, text = REASONS[self.status]
        kind = KINDS.get(call.kind)
        if self.status == 403 and kind:
            who = f'in API group "{kind.group}" in the namespace "{call.namespace}"'
            text = f'{kind.resource} "{call.name}" is forbidden: User cannot {call.verb} resource "{kind.plural}" {who}'
        return Refused(self.status, reason, text, {"retryAfterSeconds": 1} if self.status in (429, 503) else {})


@dataclass
class Faults:
    """The rules of a server, consulted for each request; the first that meets it counts."""

    rules: list[Fault] = field(default_factory=list)
    on_request: Callable[[int, Call, When], bool | None] | None = None
    """Called with the number of the request (from 1), before it is handled and again before it is answered; True drops
    the connection there. A test kills its client in it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rule: Fault) -> Fault:
        """One more rule, after the others."""
        with self._lock:
            self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """No rules and no hook."""
        with self._lock:
            self.rules.clear()
        self.on_request = None

    def meeting(self, call: Call) -> Fault | None:
        """The rule for this call; every rule that matches counts it."""
        with self._lock:
            return next((rule for rule in [r for r in self.rules if r.meets(call)]), None)
