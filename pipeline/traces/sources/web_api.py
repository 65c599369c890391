"""Pages of JSON rows from the HTTP API of a server. A failed request is sent again as late as the server asks for, or
later from attempt to attempt, with smaller pages where it does not manage large ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from pipeline.traces.sources.daily_parts import ServerAway

ATTEMPTS = 7
"""Requests for one page; before each new one a pause that doubles from FIRST_PAUSE_S, or as long as the server asks."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
LONGEST_WAIT_S = 900.0
"""A server that asks to wait longer has no quota left for today: that is a person's matter."""
SMALLER_FROM = 3
"""The attempt from which pages are halved: the server may not manage them in its time."""
Parameters = Mapping[str, str | int | tuple[str, ...]]


class Page(msgspec.Struct):
    data: list[msgspec.Raw]
    meta: dict[str, Any] = {}


class WebApi:
    """A server behind an `httpx2.Client`. `advice`: what to do when it refuses the credentials."""

    def __init__(self, client: Any, label: str, advice: str) -> None:
        self._client, self._label, self._advice = client, label, advice

    def has(self, path: str, parameters: Parameters) -> bool:
        """Whether the server knows that path. Raises as `page`."""
        return self._body(path, parameters, 1)[0] is not None

    def page(self, path: str, parameters: Parameters, limit: int | None = None) -> tuple[Page, int]:
        """Up to `limit` rows, and the limit that the server managed. None: of a path that has no pages.

        Raises ServerAway when the server is not there, ValueError that says what to do when it refuses.
        """
        body, limit = self._body(path, parameters, limit)
        if body is None:
            raise ValueError(f"{self._label} has no {path} (404). {self._advice}")
        try:
            return msgspec.json.decode(body, type=Page), limit
        except msgspec.MsgspecError as error:
            raise ValueError(
                f"{self._label} answers {path} with something else than a page of rows. Give the root of the "
                "server, such as https://host, and no page of its user interface."
            ) from error

    def by_cursor(self, path: str, parameters: Parameters, limit: int) -> Iterator[list[msgspec.Raw]]:
        """The pages of a path that gives a cursor to the next one. Raises as `page`."""
        cursor: str | None = None
        while True:
            at = {} if cursor is None else {"cursor": cursor}
            page, limit = self.page(path, {**parameters, **at}, limit)
            yield page.data
            following = page.meta.get("cursor")
            if not following:
                return
            if following == cursor:
                raise ValueError(f"{self._label} gives the same cursor of {path} again. Tell its operator.")
            cursor = str(following)

    def by_number(self, path: str, parameters: Parameters, limit: int) -> Iterator[list[msgspec.Raw]]:
        """The pages of a path that numbers them from 1, of one size. Raises as `page`."""
        number = 1
        while True:
            page, managed = self.page(path, {**parameters, "page": number}, limit)
            if managed < limit:  # other pages than those before: on from the one that has the first missing row
                number, limit = (number - 1) * limit // managed + 1, managed
                continue
            yield page.data
            if number >= int(page.meta.get("totalPages") or 0) or not page.data:
                return
            number += 1

    def _body(self, path: str, parameters: Parameters, limit: int | None) -> tuple[bytes | None, int]:
        """The body of a 200, None for a 404, and the limit that was asked for."""
        import httpx2

        size, why, attempt = limit or 1, "", 0
        while attempt < ATTEMPTS:
            attempt += 1
            asked = {**parameters, **({} if limit is None else {"limit": size})}
            pause = min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S)
            try:
                reply = self._client.get(path, params=asked)
            except httpx2.TransportError as error:
                why = type(error).__name__
            else:
                if reply.status_code in (200, 404):
                    return reply.content if reply.status_code == 200 else None, size
                why = f"status {reply.status_code}"
                if reply.status_code == 413 and size > 1:  # it may be too large many times over
                    attempt, size = 0, size // 2
                    continue
                if reply.status_code not in (408, 429) and reply.status_code < 500:
                    raise self._refused(path, reply.status_code, reply.headers.get("Location"))
                asks = _seconds(reply.headers.get("Retry-After"))
                if asks is not None and asks > LONGEST_WAIT_S:
                    raise ValueError(
                        f"{self._label} asks to wait {asks:,.0f} s ({why}): no quota is left. Run again then."
                    )
                pause = pause if asks is None else asks
            if attempt >= SMALLER_FROM and why != "status 429":
                size = max(size // 2, 1)
            if attempt < ATTEMPTS:
                time.sleep(pause)
        raise ServerAway(f"{self._label} does not answer {path} ({why}, {ATTEMPTS} times)")

    def _refused(self, path: str, status: int, location: str | None) -> ValueError:
        if status in (401, 403):
            return ValueError(f"{self._label} refuses the credentials ({status} for {path}). {self._advice}")
        if location is not None:
            return ValueError(f"{self._label} sends elsewhere ({status} for {path}): give the address that it has now.")
        return ValueError(f"{self._label} refuses {path} ({status}). {self._advice}")


def _seconds(retry_after: str | None) -> float | None:
    """What Retry-After says: a number of seconds, or a date."""
    for read in (float, lambda text: parsedate_to_datetime(text).timestamp() - time.time()):
        try:
            return max(read(retry_after or ""), 0.0)
        except (ValueError, TypeError):
            continue
    return None
