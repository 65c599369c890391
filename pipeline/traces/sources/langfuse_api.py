"""Reader of a Langfuse server's public API: generations and scores, one part a UTC day. Written from the API of the
Python SDK 5.0.4."""

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from pipeline.core.storage import digest_json
from pipeline.recipe.sources import LangfuseApiSource
from pipeline.traces.rows import Rows
from pipeline.traces.sources.daily_parts import ServerAway, daily_parts, day_range, read_pages
from pipeline.traces.sources.langfuse import KINDS, ScoreRow, add, row_of
from pipeline.traces.sources.protocol import Digest, Holds, SourcePart

ROOT = "/api/public"
FIELDS = "core,basic,time,io,metadata,model,usage,metrics,trace_context"
ADVICE = (
    "Set LANGFUSE_BASE_URL to the server that has the project, and LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY to keys "
    "of that project (Settings, API keys). Langfuse before version 4 is not read."
)


class _Listing(NamedTuple):
    """Where the rows of one folder of parts are, and how its pages are asked for."""

    path: str
    holds: Holds
    limit: int
    fields: str
    """Field groups that are asked for."""
    moment: str


LISTINGS = {
    "observations_v2": _Listing(f"{ROOT}/v2/observations", "calls", 500, FIELDS, "StartTime"),
    "scores_v3": _Listing(f"{ROOT}/v3/scores", "scores", 100, "subject", "Timestamp"),
}
"""By the folder that a part's name begins with."""
TIMEOUT_S = 60.0
ATTEMPTS = 7
"""Requests for one page; before each new one a pause that doubles from FIRST_PAUSE_S, or as long as the server asks."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
LONGEST_WAIT_S = 900.0
"""A server that asks to wait longer has no quota left for today: that is a person's matter."""
Parameters = Mapping[str, str | int | tuple[str, ...] | None]


class Page(msgspec.Struct):
    data: list[msgspec.Raw]
    meta: dict[str, Any] = {}


class PageTooLarge(ValueError):
    """A page that the server does not send."""


class LangfuseApi:
    """`uri` is `https://PUBLIC_KEY:SECRET_KEY@host`. A row's line is its place in the order in which it came."""

    def __init__(self, uri: str, section: LangfuseApiSource) -> None:
        address = urlsplit(uri)
        host = f"{address.scheme}://{address.netloc.rpartition('@')[2]}"
        self._section, self._root, self.label = section, f"{host}{address.path}", f"Langfuse at {host}"
        self._keys = (unquote(address.username or ""), unquote(address.password or ""))

    def parts(self) -> list[SourcePart]:
        """Each day of each of its listings, with rows or not: a day without any is proved empty."""
        with self._server() as client:
            asked = digest_json([self._section.environments, self._section.whole_metadata])[:16]
            identity = f"{self._project(client)} {asked}"
        return [
            part
            for folder, listing in LISTINGS.items()
            for part in daily_parts(self._section, folder, identity, listing.holds)
        ]

    def probe(self) -> None:
        with self._server() as client:
            self._project(client)

    def remains(self) -> str:
        return (
            "delete the user's traces in the project (DELETE /api/public/traces with their ids), and from its exports "
            "and backups"
        )

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        listing = LISTINGS[part.name.partition("/")[0]]
        kind = KINDS[listing.holds]

        def put(block: Rows, row: dict[str, Any], line: int) -> int:
            add(block, line + 1, lambda: msgspec.convert(row, kind))
            return line + 1

        with self._server() as client:
            pages = ([_read(bytes(text), kind) for text in page] for page in self._pages(client, listing, part))
            yield from read_pages(part, digest, pages, put)

    @contextmanager
    def _server(self) -> Generator[Any]:
        """A redirection is not followed: it would take the credentials with it."""
        import httpx2

        with httpx2.Client(base_url=self._root, auth=self._keys, timeout=TIMEOUT_S, follow_redirects=False) as client:
            yield client

    def _pages(self, client: Any, listing: _Listing, part: SourcePart) -> Iterator[list[msgspec.Raw]]:
        """The pages of a path by their cursors; smaller ones where they are too large for the server. Raises as
        `_page`."""
        first, end = (moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in day_range(part))
        asked = {f"from{listing.moment}": first, f"to{listing.moment}": end, "fields": listing.fields}
        asked |= {"environment": self._section.environments}
        if listing.holds == "calls":
            asked |= {"type": "GENERATION", "expandMetadata": ",".join(self._section.whole_metadata)}
        limit, cursor = listing.limit, None
        while True:
            try:
                page = self._page(client, listing.path, {**asked, "limit": limit, "cursor": cursor})
            except PageTooLarge:
                if limit == 1:
                    raise
                limit = limit // 2
                continue
            yield page.data
            cursor = page.meta.get("cursor")
            if not cursor:
                return

    def _project(self, client: Any) -> str:
        """The id of the keys' project: the days of another one are other parts."""
        page = self._page(client, f"{ROOT}/projects", {})
        try:
            return str(msgspec.json.decode(page.data[0])["id"])
        except (IndexError, KeyError, TypeError, msgspec.DecodeError) as error:
            raise ValueError(f"{self.label} names no project of these keys. {ADVICE}") from error

    def _page(self, client: Any, path: str, parameters: Parameters) -> Page:
        """Raises ServerAway, or ValueError that says what to do when the server refuses."""
        try:
            return msgspec.json.decode(self._asked(client, path, parameters), type=Page)
        except msgspec.MsgspecError as error:
            raise ValueError(
                f"{self.label} answers {path} with something else than a page of rows. Give the root of the "
                "server, such as https://host, and no page of its user interface."
            ) from error

    def _asked(self, client: Any, path: str, parameters: Parameters) -> bytes:
        import httpx2

        given = {name: value for name, value in parameters.items() if value}
        why = ""
        for attempt in range(ATTEMPTS):
            pause = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
            try:
                reply = client.get(path, params=given)
            except httpx2.TransportError as error:
                why = type(error).__name__
            else:
                status = reply.status_code
                if status == 200:
                    return reply.content
                if status not in (408, 429) and status < 500:
                    what = f"the credentials ({status} for {path})" if status in (401, 403) else f"{path} ({status})"
                    kind = PageTooLarge if status == 413 else ValueError
                    raise kind(f"{self.label} refuses {what}. {ADVICE}")
                why, after = f"status {status}", reply.headers.get("Retry-After", "")
                pause = float(after) if after.isdecimal() else pause
                if pause > LONGEST_WAIT_S:
                    raise ValueError(
                        f"{self.label} asks to wait {pause:,.0f} s ({why}): no quota is left. Run again then."
                    )
            if attempt + 1 < ATTEMPTS:
                time.sleep(pause)
        advice = "Check LANGFUSE_BASE_URL, and that the server runs."
        raise ServerAway(f"{self.label} does not answer {path} ({why}, {ATTEMPTS} times). {advice}")


def _read(text: bytes, kind: type[msgspec.Struct]) -> tuple[bytes, dict[str, Any] | None]:
    """What identifies a row, and its fields in the export's words; None for what is no row."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return text, None
    row = row_of(given, kind)
    if kind is ScoreRow and isinstance(subject := given.get("subject"), dict):  # v3 says what a score is about
        about = {str(key): value for key, value in subject.items()}
        of_observation = about.get("kind") == "observation"
        row["trace_id"] = about.get("traceId") if of_observation else about.get("id")
        row["observation_id"] = about.get("id") if of_observation else None
        if about.get("kind") not in ("observation", "trace"):
            row["trace_id"] = None
    return msgspec.json.encode(row, order="sorted"), row
