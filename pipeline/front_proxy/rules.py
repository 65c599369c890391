"""Which requests pass: a pure function of a request's head.

A page on any site can make a browser send a request to 127.0.0.1, or to a host where the browser is signed in. It
cannot choose the Host without owning the name (DNS rebinding), cannot hide its Origin from a request that changes
state, and without asking first (CORS) it sends no content type but the three of an HTML form. Fetch Metadata
(https://www.w3.org/TR/fetch-metadata/) names what carries no Origin: images, scripts, frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

READING = frozenset({"GET", "HEAD", "OPTIONS"})
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
SINGLE = (b"host", b"origin", b"content-type", b"content-length", b"sec-fetch-site", b"sec-fetch-mode")
"""Headers that two servers would read differently if there were two of them."""
FORM_TYPES = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
"""What a page may send to another site without asking it (https://fetch.spec.whatwg.org/#cors-safelisted-request-header)."""


class Denial(NamedTuple):
    """Why a request does not pass; the reason is for people and repeats nothing of the request."""

    status: int
    reason: str


class SiteRules(NamedTuple):
    """Of one site: the names it is asked by, in lower case, and the origins of its own pages."""

    hosts: frozenset[str]
    """`name` or `name:port`, as in the header Host."""
    origins: frozenset[str]
    """`https://name`, as in the header Origin."""

    def denial(
        self, method: str, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]], websocket: bool = False
    ) -> Denial | None:
        """Why the request does not pass, or None. `headers`: with names in lower case, as in ASGI."""
        head: dict[bytes, str] = {}
        for name, value in headers:
            if name in SINGLE and name in head:
                return Denial(400, "A header is there twice.")
            head[name] = value.decode("latin-1").strip()
        if head.get(b"host", "").lower() not in self.hosts:
            return Denial(421, "This server is not asked by that name. Use the address that it printed.")
        origin = head.get(b"origin")
        if origin is not None and origin not in self.origins:
            return Denial(403, "A page of another origin asked for this.")
        if websocket:
            return None if origin is not None else Denial(403, "A websocket says which page it belongs to (Origin).")
        site = head.get(b"sec-fetch-site", "none")
        if site not in ("same-origin", "none") and not _is_visit(method, head):
            return Denial(403, "A page of another site asked for this.")
        is_graphql = path.rstrip("/").rpartition("/")[2] == "graphql"
        if is_graphql and site not in ("same-origin", "none"):
            return Denial(403, "A page of another site asked for this.")
        if method in READING:
            if is_graphql and query:
                return Denial(405, "GraphQL is asked by POST.")
            return None
        if method not in CHANGING:
            return Denial(405, "This method is not known here.")
        return _body_of_a_page(head, is_graphql)


def _is_visit(method: str, head: dict[bytes, str]) -> bool:
    """A person followed a link from another site: a whole page is fetched, and shown in a tab of its own."""
    return method == "GET" and head.get(b"sec-fetch-mode") == "navigate" and head.get(b"sec-fetch-dest") == "document"


def _body_of_a_page(head: dict[bytes, str], is_graphql: bool) -> Denial | None:
    """Refuses what an HTML form could send; to GraphQL, all but JSON, without which it reads its query from the URL."""
    has_body = head.get(b"content-length", "0") != "0" or b"transfer-encoding" in head
    kind = head.get(b"content-type", "").partition(";")[0].strip().lower()
    if is_graphql and kind != "application/json":
        return Denial(415, "GraphQL is asked in application/json.")
    if kind in FORM_TYPES or (has_body and not kind):
        return Denial(415, "Forms and untyped bodies are not taken. Send application/json.")
    return None
