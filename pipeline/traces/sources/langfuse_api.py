"""Reader of a Langfuse server's public API: generations and scores, one part a UTC day.

Observations by `GET /api/public/v2/observations` (cursor; Langfuse Cloud, and self-hosted from version 4) or, where the
server has none, by the first API (`/observations`, and `/traces` for user, session and metadata; numbered pages).
Scores by `/v3/scores` or `/v2/scores`. Written from the API of the Python SDK 5.0.4 and, for the first API, 3.15.0.

Owns which days there are, and which are settled: a day is read on each run until `settled_after_days`, and then once
more. Hands rows to `langfuse` in the shape of an export. What identifies a part's content is its rows, whatever the
pages and the order that they came in.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from pipeline.core.storage import digest_json
from pipeline.recipe.traces import LangfuseApiSource
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows
from pipeline.traces.sources.daily_parts import DayRange, PagedRows, daily_parts
from pipeline.traces.sources.langfuse import Observation, ScoreRow, TraceRow, add
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Digest, SourcePart, named_day
from pipeline.traces.sources.web_api import ApiAccess, ServerAway, WebApi, connected

ROOT = "/api/public"
FIELDS = "core,basic,time,io,metadata,model,usage,metrics,trace_context"
ADVICE = (
    "Set LANGFUSE_BASE_URL to the server that has the project, and LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY to keys "
    "of that project (Settings, API keys)."
)


class _Listing(NamedTuple):
    """Where the rows of one folder of parts are, and how its pages are asked for."""

    path: str
    holds: Literal["calls", "scores", "attributes"]
    first: str
    """Parameter of the first moment that is wanted."""
    end: str
    """Parameter of the first that is not."""
    pages: Literal["cursor", "number"]
    limit: int
    fields: str = ""
    """Field groups that are asked for; empty: the path has none."""


LISTINGS = {
    "observations_v2": _Listing(
        f"{ROOT}/v2/observations", "calls", "fromStartTime", "toStartTime", "cursor", 500, FIELDS
    ),
    "observations": _Listing(f"{ROOT}/observations", "calls", "fromStartTime", "toStartTime", "number", 100),
    "traces": _Listing(f"{ROOT}/traces", "attributes", "fromTimestamp", "toTimestamp", "number", 100, "core,io"),
    "scores_v3": _Listing(f"{ROOT}/v3/scores", "scores", "fromTimestamp", "toTimestamp", "cursor", 100, "subject"),
    "scores": _Listing(f"{ROOT}/v2/scores", "scores", "fromTimestamp", "toTimestamp", "number", 100),
}
"""By the folder that a part's name begins with. A server that is replaced by a newer one has other parts."""
KINDS = {"calls": Observation, "scores": ScoreRow, "attributes": TraceRow}
NAMES = {"provided_model_name": "model"}
"""Fields that the API does not call by their camelCase name."""


class LangfuseApi:
    """`uri` is `https://PUBLIC_KEY:SECRET_KEY@host`. A row's line is its place in the order in which it came."""

    def __init__(self, uri: str, section: LangfuseApiSource) -> None:
        address = urlsplit(uri)
        host = address.netloc.rpartition("@")[2]
        self._section = section
        self.label = f"Langfuse at {address.scheme}://{host}"
        user, secret = unquote(address.username or ""), unquote(address.password or "")
        self._access = ApiAccess(f"{address.scheme}://{host}{address.path}", user, secret, self.label, ADVICE)

    def parts(self) -> list[SourcePart]:
        """Each day of each of its listings, with rows or not: a day without any is proved empty."""
        with _reached(self._access) as api:
            asked = digest_json([self._section.environments, self._section.whole_metadata])[:16]
            identity = f"{self._project(api)} {asked}"
            folders = self._folders(api)
        listed: list[SourcePart] = []
        for folder in folders:
            holds = LISTINGS[folder].holds
            # A trace may begin on the day before its call.
            listed += daily_parts(self._section, folder, identity, holds, days_before=int(holds == "attributes"))
        return sorted(listed)

    def probe(self) -> None:
        with _reached(self._access) as api:
            self._project(api)

    def remains(self) -> str:
        return (
            "delete the user's traces in the project (DELETE /api/public/traces with their ids), and from its exports "
            "and backups"
        )

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        """As the protocol says. Raises ValueError when the server is away from the first page on; where it goes away
        later, the part breaks off there, and is read again by the next run."""
        listing = LISTINGS[part.name.partition("/")[0]]
        kind = KINDS[listing.holds]
        read = PagedRows()
        block, held, line = Rows(), 0, 0
        try:
            with connected(self._access) as api:
                for page in self._pages(api, listing, part):
                    for text in page:
                        size, row = len(bytes(text)), _plain(text, kind)
                        content = bytes(text) if row is None else msgspec.json.encode(row, order="sorted")
                        if not read.is_new(content):
                            continue
                        line += 1
                        if row is None:
                            block.rejected.append(Rejection(line, Reason.MALFORMED, detail="no JSON object"))
                        elif size > MAX_LINE:
                            detail = f"a row of over {MAX_LINE} bytes"
                            block.rejected.append(Rejection(line, Reason.TOO_LONG, detail=detail))
                        else:
                            add(block, line, lambda row=row: msgspec.convert(row, kind))
                        held += size
                    if held >= BLOCK:
                        yield block
                        block, held = Rows(), 0
        except ServerAway as error:
            if not line:
                raise ValueError(f"{error}. Wait until it does, and run again.") from error
            block.rejected.append(
                Rejection(line + 1, Reason.TRUNCATED_FILE, day=named_day(part.name), detail=str(error))
            )
        read.identify(digest)
        yield block

    def _pages(self, api: WebApi, listing: _Listing, part: SourcePart) -> Iterator[list[msgspec.Raw]]:
        first, end = (moment.strftime("%Y-%m-%dT%H:%M:%SZ") for moment in DayRange.of(part))
        more: dict[str, str | int | tuple[str, ...]] = {listing.first: first, listing.end: end}
        if listing.fields:
            more["fields"] = listing.fields
        if self._section.environments:
            more["environment"] = self._section.environments
        if listing.holds == "calls":
            more["type"] = "GENERATION"
        if listing.pages == "number":
            return api.by_number(listing.path, more, listing.limit)
        if listing.holds == "calls" and self._section.whole_metadata:
            more["expandMetadata"] = ",".join(self._section.whole_metadata)
        return api.by_cursor(listing.path, more, listing.limit)

    def _folders(self, api: WebApi) -> list[str]:
        """What this server has, the newest API first."""
        first = {"fromStartTime": f"{self._section.since.isoformat()}T00:00:00Z"}
        calls = ["observations_v2"] if api.has(LISTINGS["observations_v2"].path, first) else ["observations", "traces"]
        return [*calls, "scores_v3" if api.has(LISTINGS["scores_v3"].path, {}) else "scores"]

    def _project(self, api: WebApi) -> str:
        """The id of the keys' project: the days of another one are other parts."""
        page, _ = api.page(f"{ROOT}/projects", {})
        try:
            return str(msgspec.json.decode(page.rows[0])["id"])
        except (IndexError, KeyError, TypeError, msgspec.DecodeError) as error:
            raise ValueError(f"{self.label} names no project of these keys. {ADVICE}") from error


@contextmanager
def _reached(access: ApiAccess) -> Generator[WebApi]:
    """A connection for which a server that is away is a fault of the source."""
    try:
        with connected(access) as api:
            yield api
    except ServerAway as error:
        raise ValueError(f"{error}. Check LANGFUSE_BASE_URL, and that the server runs.") from error


def _plain(text: msgspec.Raw, kind: type[msgspec.Struct]) -> dict[str, Any] | None:
    """A row in the export's words: the fields that `kind` has. None for what is no row."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None
    row = {name: given[key] for name in kind.__struct_fields__ if (key := NAMES.get(name, _camel(name))) in given}
    metadata = row.get("metadata") or {}
    if kind is Observation and isinstance(metadata, dict) and isinstance(given.get("environment"), str):
        row["metadata"] = {"environment": given["environment"], **metadata}
    if kind is ScoreRow and isinstance(subject := given.get("subject"), dict):  # v3 says what a score is about
        about = {str(key): value for key, value in subject.items()}
        of_observation = about.get("kind") == "observation"
        row["trace_id"] = about.get("traceId") if of_observation else about.get("id")
        row["observation_id"] = about.get("id") if of_observation else None
        if about.get("kind") not in ("observation", "trace"):
            row["trace_id"] = None
    return row


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)
