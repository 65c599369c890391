"""One-time links, and the cookies that they are exchanged for.

A link is good for one browser: whoever reads it later, in a terminal's history or a screenshot, gets nothing. The
cookie lives as long as the process. It is `SameSite=Strict` and `HttpOnly`; ports share cookies, so its name has the
port.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs

PATH = "/sign-in"


class SignIn:
    """Of one site. `announce` is given the address of each new link."""

    def __init__(self, root: str, cookie_name: str, announce: Callable[[str], None]) -> None:
        self._root, self._cookie_name, self._announce = root, cookie_name, announce
        self._cookies: set[str] = set()
        self._token = ""

    def announce_link(self) -> None:
        """Make the link, and void the one before it."""
        self._token = secrets.token_urlsafe(32)
        self._announce(f"{self._root}{PATH}?token={self._token}")

    def exchange(self, query: bytes) -> str | None:
        """The header Set-Cookie for a link's token, which is void afterwards; None for a token that is not good."""
        try:
            (token,) = parse_qs(query.decode("latin-1"), max_num_fields=4).get("token", [""])[:1]
        except ValueError:  # more fields than a link of ours has
            return None
        if not token or not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        cookie = secrets.token_urlsafe(32)
        self._cookies.add(cookie)
        self.announce_link()
        return f"{self._cookie_name}={cookie}; Path=/; HttpOnly; SameSite=Strict"

    def split_cookies(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[bool, list[tuple[bytes, bytes]]]:
        """Whether a cookie of ours is good, and the headers without ours: the server behind has no use for them."""
        is_signed_in, passed = False, list[tuple[bytes, bytes]]()
        for name, value in headers:
            if name != b"cookie":
                passed.append((name, value))
                continue
            others: list[str] = []
            for pair in value.decode("latin-1").split(";"):
                key, _, cookie = pair.strip().partition("=")
                if key == self._cookie_name:
                    is_signed_in = is_signed_in or any(
                        hmac.compare_digest(cookie.encode(), each.encode()) for each in self._cookies
                    )
                elif pair.strip():
                    others.append(pair.strip())
            if others:
                passed.append((name, "; ".join(others).encode("latin-1")))
        return is_signed_in, passed
