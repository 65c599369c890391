"""Which requests the gateway takes: none that the page of another site can make a browser send.

A browser sends the Host that it was given and the Origin of the page that asks, and no page can change either. JSON it
sends to another site only after asking that site (CORS), and this one does not agree. So the Host has to be one of ours
(a foreign name that resolves to this machine is DNS rebinding), an Origin that of the gateway's own page, and what is
posted JSON. Programs send no Origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import Scope

from pipeline.gateway.asked import BadRequest

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[^\[\]:]+)(:\d+)?")


class Door:
    """`hosts`: names without a port, besides this machine's own; every port of a name is allowed."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset((*LOOPBACK, *(host.lower() for host in hosts)))

    def check(self, scope: Scope) -> None:
        """Raises BadRequest for a request that is not taken. Nothing of the request is repeated."""
        hosts, origins, kinds = (_values(scope, name) for name in (b"host", b"origin", b"content-type"))
        if len(hosts) != 1 or host_name(hosts[0]) not in self._hosts:
            raise BadRequest(403, "The host of this address is not allowed. Add it to rollout.traffic.allowed_hosts.")
        if origins and [origin.partition(b"://")[2] for origin in origins] != hosts:
            raise BadRequest(
                403, "A page of another site sent this (header Origin). Ask from a program or the own page."
            )
        if scope["method"] == "POST" and [kind.partition(b";")[0].strip() for kind in kinds] != [b"application/json"]:
            raise BadRequest(415, "The gateway reads JSON. Send the header content-type: application/json.")


def host_name(header: bytes) -> str:
    """The name in a Host header, without its port; "" for none."""
    match = _HOST.fullmatch(header.lower())
    return match[1].decode("latin-1") if match else ""


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value.lower() for each, value in scope["headers"] if each == name]
