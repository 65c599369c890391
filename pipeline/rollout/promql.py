"""The HTTP API of a Prometheus server: instant vectors, and the raw samples of a selector.

Refuses an answer that is partial, no number or no answer; it never stands for zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.rollout.scrapes import Series

TIMEOUT_S = 10.0
MOST_S = 3_600.0
"""Of one query for raw samples: a longer time is asked for in parts."""


class Sample(NamedTuple):
    """One element of an instant vector."""

    labels: Mapping[str, str]
    value: float


class Promql:
    """One server, while its client is open."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        import httpx2

        self._client = httpx2.Client(base_url=url.rstrip("/"), timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Promql:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def vector(self, query: str, at: float) -> list[Sample]:
        """The instant vector of a query. Raises ValueError for one that is refused, partial or not a number, OSError
        when the server does not answer."""
        return [Sample(labels, value) for labels, points in self._ask(query, at, "vector") for _, value in points]

    def samples(self, selector: str, since: float, until: float) -> list[Series]:
        """Every sample of the series that a selector names, from one moment to another. Raises as `vector` does."""
        points: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
        start = since
        while start <= until:
            end = min(until, start + MOST_S)
            window = f"[{math.ceil((end - start) * 1000) + 1}ms]"
            for labels, part in self._ask(selector + window, end, "matrix"):
                points.setdefault(tuple(sorted(labels.items())), {}).update(part)
            start = end + MOST_S * (end == until)
        return [
            Series(dict(labels), *zip(*sorted((at, value) for at, value in of.items()), strict=True))
            for labels, of in points.items()
        ]

    def _ask(self, query: str, at: float, kind: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        import httpx2

        url = self._client.base_url
        try:
            reply = self._client.post("/api/v1/query", data={"query": query, "time": f"{at:.3f}"})
        except httpx2.TransportError as error:
            raise ConnectionError(f"Prometheus at {url} does not answer ({error!r})") from error
        if reply.status_code >= 500 and reply.status_code != 503:
            raise ConnectionError(f"Prometheus at {url} answers {reply.status_code}")
        try:
            body: Any = reply.json()
            status, problems = body["status"], [body["error"]] if "error" in body else body.get("warnings") or []
            rows: list[Any] = body["data"]["result"] if status == "success" else []
            series = [
                (dict(row["metric"]), [(float(at), float(value)) for at, value in _points(row, kind)]) for row in rows
            ]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"{url} answers {reply.status_code} with {reply.text[:100]!r}, which is no {kind}. Set "
                "rollout.metrics.url to the root of a Prometheus HTTP API."
            ) from error
        if problems:
            raise ValueError(f"Prometheus refuses {query}: {'; '.join(map(str, problems))}. Mend the query.")
        for labels, points in series:
            for _, value in points:
                if not math.isfinite(value):
                    raise ValueError(f"{query} is {value} for {labels}. Look at that series.")
        return series


def _points(row: Any, kind: str) -> list[Any]:
    return row["values"] if kind == "matrix" else [row["value"]]
