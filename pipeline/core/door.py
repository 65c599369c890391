"""The rules of our web servers for what other sites' pages may send: the Host is one of ours (else DNS rebinding), an
Origin is that of our own page, and what is posted is JSON, which a browser sends elsewhere only after asking (CORS)."""

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


def refusal(scope: Scope, hosts: Collection[str]) -> tuple[int, str] | None:
    """Why a request is not to be answered, with the HTTP status. Nothing of the request is repeated."""
    foreign = foreign_header(scope, hosts)
    if foreign == "host":
        return 403, "The host of this address is not allowed. Add it to rollout.traffic.allowed_hosts."
    if foreign == "origin":
        return 403, "Another site's page sent this (header Origin). Ask from a program or the own page."
    kinds = [kind.partition(b";")[0].strip() for kind in header_values(scope, b"content-type")]
    if scope["method"] == "POST" and kinds != [b"application/json"]:
        return 415, "This server reads JSON. Send the header content-type: application/json."
    return None


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    return [value.lower() for each, value in scope["headers"] if each == name]
