"""Live metrics from a Prometheus server: requests, errors and latencies by its `increase()`, as the slots count them,
or a pool's endpoint picker: a server of several adapters does not count by adapter.
What is missing, partial or no number is a missed look with its reason, never zero."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pipeline.recipe.rollout import PrometheusMetrics
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.router import Split
from pipeline.rollout.shares import Latencies
from pipeline.serving.endpoint import served_name


class Series(NamedTuple):
    """Names of counters by model, and of the label that names it."""

    label: str
    requests: str
    latency: str
    errors: str = ""
    """Of the requests; "": they are told by `finished_reason`."""


SERVERS = Series("model_name", "vllm:request_success_total", "vllm:e2e_request_latency_seconds_bucket")
PICKER = Series("target_model_name", "llm_d_epp_request_total", "llm_d_epp_request_duration_seconds_bucket",
                "llm_d_epp_request_error_total")  # fmt: skip
"""Of llm-d-router 0.9 and later."""
ANSWERED = frozenset({"stop", "length"})
CALLERS = frozenset({"abort"})
"""Ends that say nothing of the model: the caller hung up. Any end in neither set is an error."""
LAG_SCRAPES = 2
WINDOW = "{window}"
"""Stands for the window's length in `errors_query`."""
TIMEOUT_S = 10.0


class Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


class PrometheusLooks:
    """LiveMetricsPort over the HTTP API of a Prometheus server; the unit is the request."""

    def __init__(self, section: PrometheusMetrics, model_name: str, series: Series = SERVERS) -> None:
        """`model_name`: what callers ask for; `series` carry `<model>@<digest12>` in their label."""
        self._section, self._model_name, self._series = section, model_name, series

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        """Both arms from `since` to two scrapes before `now`; None where that is less than two scrapes, or there is no
        canary. Raises ValueError saying why the look is missed, OSError when the server does not answer."""
        every_s, since = self._section.scrape_interval_s, request.since
        until = request.now - LAG_SCRAPES * every_s
        if split.canary is None or until - since < LAG_SCRAPES * every_s:
            return None
        names = tuple(served_name(self._model_name, model.digest) for model in (split.champion, split.canary))
        label, requests, latency, failures = self._series
        labels = f"{{{label}=~{json.dumps('|'.join(map(re.escape, names)))}}}"
        window = f"{round((until - since) * 1000)}ms"
        servers = f"group by ({label}, job, instance) ({requests}{labels})"
        queries = {
            "up": f"count by ({label}) ({servers} * on (job, instance) group_left () (up == 1))",
            "requests": f"sum by ({label}, finished_reason) (increase({requests}{labels}[{window}]))",
            "latency": f"sum by ({label}, le) (increase({latency}{labels}[{window}]))",
        }
        if failures:  # a counter that begins with the first failure
            none = f"0 * sum by ({label}) (increase({requests}{labels}[{window}]))"
            queries["errors"] = f"sum by ({label}) (increase({failures}{labels}[{window}])) or {none}"
        if errors := self._section.errors_query:
            counter = f"sum by ({label}) (increase({errors}[{window}]))"
            queries["errors"] = errors.replace(WINDOW, window) if WINDOW in errors else counter
        rows = {kind: self._vector(query, until) for kind, query in queries.items()}
        champion, canary = (self._arm(name, rows, request.slow_over_s) for name in names)
        return LiveMetrics(champion=champion, canary=canary, window_start=since, window_end=until, graded_until=until)

    def _arm(self, name: str, rows: Mapping[str, Sequence[Sample]], slow_over_s: float | None) -> ArmLook:
        """Counts are whole: an increase may be a fraction of a request."""
        own = {kind: [row for row in each if row.labels.get(self._series.label) == name] for kind, each in rows.items()}
        replicas = sum(row.value for row in own["up"])
        if replicas < self._section.replicas:
            raise ValueError(
                f"{replicas:.0f} of {self._section.replicas} servers of {name} are up in Prometheus. Look at its "
                "targets, or set rollout.metrics.replicas."
            )
        cumulative = sorted((float(row.labels["le"]), row.value) for row in own["latency"])
        if not own["requests"] or not cumulative or not math.isinf(cumulative[-1][0]):
            silent = self._series.latency if own["requests"] else self._series.requests
            raise ValueError(
                f"{silent} of {name} has no samples in the window. Wait for two scrapes of each server, or look at its "
                "metrics."
            )
        reasons = [(row.labels.get("finished_reason", ""), row.value) for row in own["requests"]]
        answered = round(sum(value for reason, value in reasons if reason in ANSWERED))
        failed = round(sum(value for reason, value in reasons if reason not in ANSWERED | CALLERS))
        if "errors" in own:
            failed = round(sum(row.value for row in own["errors"]))
            if not own["errors"] or failed < 0:
                raise ValueError(
                    f"rollout.metrics.errors_query gives {failed if own['errors'] else 'no'} errors of model_name "
                    f"{name}. Let it count, and give 0 for an arm without errors."
                )
        if self._series.errors:
            answered = max(0, round(sum(value for _, value in reasons)) - failed)
        slow = 0
        if slow_over_s is not None:  # over the last edge below the threshold: none that took longer is missed
            below = max((value for edge, value in cumulative if edge <= slow_over_s), default=0.0)
            slow = min(answered, max(0, round(cumulative[-1][1] - below)))
        values = [0.0, *(value for _, value in cumulative)]
        latencies = Latencies(
            edges_s=tuple(edge for edge, _ in cumulative),
            counts=tuple(max(0.0, after - before) for before, after in pairwise(values)),
        )
        counts = UnitCounts(requests=answered + failed, errors=failed, slow=slow)
        return ArmLook(units={"": counts}, latencies=latencies)

    def _vector(self, query: str, at: float) -> list[Sample]:
        """The instant vector of a query. Raises ValueError for one that is refused, partial or not a number, OSError
        when the server does not answer."""
        import httpx2

        url = self._section.url.rstrip("/")
        try:
            with httpx2.Client(timeout=TIMEOUT_S) as client:
                reply = client.post(f"{url}/api/v1/query", data={"query": query, "time": f"{at:.3f}"})
        except httpx2.TransportError as error:
            raise ConnectionError(f"Prometheus at {url} does not answer ({error!r})") from error
        try:
            body: Any = reply.json()
            problems = [body["error"]] if "error" in body else body.get("warnings") or []
            rows: list[Any] = body["data"]["result"] if body["status"] == "success" else []
            samples = [Sample(dict(row["metric"]), float(row["value"][1])) for row in rows]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"{url} answers {reply.status_code} with {reply.text[:100]!r}, which is no vector. Set "
                "rollout.metrics.url to the root of a Prometheus HTTP API."
            ) from error
        if problems:
            raise ValueError(f"Prometheus refuses {query}: {'; '.join(map(str, problems))}. Mend the query.")
        if odd := next((sample for sample in samples if not math.isfinite(sample.value)), None):
            raise ValueError(f"{query} is {odd.value} for {odd.labels}. Look at that series.")
        return samples
