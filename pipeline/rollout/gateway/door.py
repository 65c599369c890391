"""The Host and Origin rule of our web servers: the Host is one of ours (else DNS rebinding), and an Origin is that of
our own page."""

import re
from collections.abc import Collection
from typing import Literal

from starlette.types import Scope

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[^\[\]:]+)(:\d+)?")


def foreign_header(scope: Scope, hosts: Collection[str]) -> Literal["host", "origin"] | None:
    """The header that refuses a request: a Host that is none of `hosts`, names in lower case without a port, or an
    Origin that is not the Host."""
    sent = header_values(scope, b"host")
    match = _HOST.fullmatch(sent[0]) if len(sent) == 1 else None
    if match is None or match[1].decode("latin-1") not in hosts:
        return "host"
    origins = header_values(scope, b"origin")
    return "origin" if origins and [origin.partition(b"://")[2] for origin in origins] != sent else None


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    return [value.lower() for each, value in scope["headers"] if each == name]
