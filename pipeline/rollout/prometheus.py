"""Live metrics from a Prometheus server that scrapes the slots: requests, errors and latencies, never quality.

A counter's increase is taken of each series before the sum, so that a restarted server is no negative count. Windows
end two scrapes before now, when their last samples are there. What cannot be counted for certain (fewer servers that
are up than replicas, an absent or stale series, NaN) is a look that is missed, with its reason; never zero.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pipeline.recipe.rollout import PrometheusMetrics
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.latency import Latencies
from pipeline.rollout.router import Split
from pipeline.serving.served_names import served_name

FINISHED = "vllm:request_success_total"
LATENCY = "vllm:e2e_request_latency_seconds_bucket"
ANSWERED = frozenset({"stop", "length"})
CALLERS = frozenset({"abort"})
"""Ends that say nothing of the model: the caller hung up. Any end in neither set is an error."""
LAG_SCRAPES = 2
TIMEOUT_S = 10.0
WINDOW = "{window}"
"""Stands for the window's length in `errors_query`."""


class Sample(NamedTuple):
    """One element of an instant vector."""

    labels: Mapping[str, str]
    value: float


class PrometheusLooks:
    """LiveMetricsPort over the HTTP API of a Prometheus server; the unit is the request."""

    def __init__(self, section: PrometheusMetrics, model_name: str, timeout_s: float = TIMEOUT_S) -> None:
        """`model_name`: what callers ask for; a slot's series carry `<model>@<digest12>` as `model_name`."""
        self._section, self._model_name, self._timeout_s = section, model_name, timeout_s

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        """Both arms from `since` to two scrapes before `now`; None where that is less than two scrapes, or there is no
        canary.

        Raises ValueError saying why the look is missed, OSError when the server does not answer.
        """
        end = request.now - LAG_SCRAPES * self._section.scrape_interval_s
        if split.canary is None or end - request.since < LAG_SCRAPES * self._section.scrape_interval_s:
            return None
        names = tuple(served_name(self._model_name, model.digest) for model in (split.champion, split.canary))
        if names[0] == names[1]:
            raise ValueError(f"Both arms are {names[0]}, whose requests are one series. Roll out another model.")
        series = "{model_name=~" + json.dumps("|".join(map(re.escape, names))) + "}"
        window = f"{round((end - request.since) * 1000)}ms"
        with self._client() as client:
            query = _Query(client, end)
            self._check_servers(query, series, names, end)
            ends = query.by(f"sum by (model_name, finished_reason) (increase({FINISHED}{series}[{window}]))")
            buckets = query.by(f"sum by (model_name, le) (increase({LATENCY}{series}[{window}]))")
            template = self._section.errors_query
            errors = query.by(template.replace(WINDOW, window)) if template else None
        champion, canary = (_arm(name, ends, buckets, errors, request.slow_over_s) for name in names)
        return LiveMetrics(
            champion=champion, canary=canary, window_start=request.since, window_end=end, graded_until=end
        )

    def _client(self) -> Any:
        import httpx2

        root = self._section.url.rstrip("/")
        return httpx2.Client(base_url=root, timeout=self._timeout_s, trust_env=False)

    def _check_servers(self, query: _Query, series: str, names: Sequence[str], end: float) -> None:
        """Raises ValueError unless every replica of both arms is up and was scraped lately."""
        servers = f"group by (model_name, job, instance) ({FINISHED}{series})"
        up = query.by(f"count by (model_name) ({servers} * on (job, instance) group_left () (up == 1))")
        scraped = query.by(f"min by (model_name) (timestamp({FINISHED}{series}))")
        for name in names:
            replicas = sum(sample.value for sample in _of(name, up))
            if replicas < self._section.replicas:
                raise ValueError(
                    f"{replicas:.0f} of {self._section.replicas} servers of {name} are up in Prometheus. Look at its "
                    "targets, or set rollout.metrics.replicas."
                )
            (last,) = _of(name, scraped)
            if end - last.value > LAG_SCRAPES * self._section.scrape_interval_s:
                raise ValueError(
                    f"The newest sample of {name} is {end - last.value:.0f} s older than the window's end. Look at the "
                    "targets of Prometheus, or set rollout.metrics.scrape_interval_s."
                )


class _Query(NamedTuple):
    """The server at one moment."""

    client: Any
    at: float

    def by(self, promql: str) -> list[Sample]:
        """The instant vector of a query. Raises ValueError for one that is refused, partial or not a number."""
        import httpx2

        try:
            reply = self.client.post("/api/v1/query", data={"query": promql, "time": f"{self.at:.3f}"})
        except httpx2.TransportError as error:
            raise ConnectionError(f"Prometheus at {self.client.base_url} does not answer ({error!r})") from error
        if reply.status_code >= 500 and reply.status_code != 503:
            raise ConnectionError(f"Prometheus at {self.client.base_url} answers {reply.status_code}")
        try:
            body: Any = reply.json()
            status, problems = body["status"], [body["error"]] if "error" in body else body.get("warnings") or []
            rows: list[Any] = body["data"]["result"] if status == "success" else []
            samples = [Sample(row["metric"], float(row["value"][1])) for row in rows]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"{self.client.base_url} answers {reply.status_code} with {reply.text[:100]!r}, which is no instant "
                "vector. Set rollout.metrics.url to the root of a Prometheus HTTP API."
            ) from error
        if problems:
            raise ValueError(f"Prometheus refuses {promql}: {'; '.join(map(str, problems))}. Mend the query.")
        for sample in samples:
            if not math.isfinite(sample.value):
                raise ValueError(f"{promql} is {sample.value} for {dict(sample.labels)}. Look at that series.")
        return samples


def _of(name: str, samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.labels.get("model_name") == name]


def _arm(
    name: str,
    ends: Sequence[Sample],
    buckets: Sequence[Sample],
    errors: Sequence[Sample] | None,
    slow_over_s: float | None,
) -> ArmLook:
    """Counts are whole: an increase is extrapolated to the window, and a fraction of a request is none."""
    reasons = {sample.labels.get("finished_reason", ""): sample.value for sample in _of(name, ends)}
    cumulative = sorted((float(sample.labels["le"]), sample.value) for sample in _of(name, buckets))
    if not reasons or not cumulative or not math.isinf(cumulative[-1][0]):
        raise ValueError(
            f"{FINISHED if not reasons else LATENCY} of {name} has no increase in the window. Wait for two scrapes of "
            "each server, or look at its metrics."
        )
    answered = round(sum(value for reason, value in reasons.items() if reason in ANSWERED))
    if errors is None:
        failed = round(sum(value for reason, value in reasons.items() if reason not in ANSWERED | CALLERS))
    else:
        at_router = _of(name, errors)
        if not at_router:
            raise ValueError(
                f"rollout.metrics.errors_query has no value with model_name {name}. Let it give 0 for an arm without "
                "errors."
            )
        failed = round(sum(sample.value for sample in at_router))
    if failed < 0:
        raise ValueError(f"rollout.metrics.errors_query gives {failed} errors of {name}. Let it count.")
    requests = answered + failed
    slow = _over(cumulative, slow_over_s) if slow_over_s is not None else 0
    counts = UnitCounts(requests=requests, errors=failed, slow=min(slow, answered))
    return ArmLook(units={"": counts}, latencies=_latencies(cumulative))


def _over(cumulative: Sequence[tuple[float, float]], threshold_s: float) -> int:
    """Requests over the last edge that is not above the threshold, so none that took longer is missed."""
    below = max((value for edge, value in cumulative if edge <= threshold_s), default=0.0)
    return max(0, round(cumulative[-1][1] - below))


def _latencies(cumulative: Sequence[tuple[float, float]]) -> Latencies:
    values = [0.0, *(value for _, value in cumulative)]
    counts = tuple(max(0.0, after - before) for before, after in pairwise(values))
    return Latencies(edges_s=tuple(edge for edge, _ in cumulative), counts=counts)
