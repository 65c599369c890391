"""Live metrics from a Prometheus server that scrapes the slots: requests, errors and latencies, never quality.

Counts are differences of counters between two scrapes (scrapes.py), whatever the server had time to scrape between
them: never an increase that it extrapolates to a window. A window ends two scrapes before now, and never later than the
moment up to which every server was scraped. What cannot be counted for certain (fewer servers that are up or scraped
lately than replicas, fewer than two scrapes, NaN) is a look that is missed, with its reason; never zero.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from pipeline.recipe.rollout import PrometheusMetrics
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.latency import Latencies
from pipeline.rollout.promql import TIMEOUT_S, Promql, Sample
from pipeline.rollout.router import Split
from pipeline.rollout.scrapes import Scrapes, Series, increase
from pipeline.serving.served_names import served_name

FINISHED = "vllm:request_success_total"
LATENCY = "vllm:e2e_request_latency_seconds_bucket"
ANSWERED = frozenset({"stop", "length"})
CALLERS = frozenset({"abort"})
"""Ends that say nothing of the model: the caller hung up. Any end in neither set is an error."""
LAG_SCRAPES = 2
Labelled = TypeVar("Labelled", Series, Sample)
ERRORS = "errors"
WINDOW = "{window}"
"""Stands for the window's length in `errors_query`."""


class PrometheusLooks:
    """LiveMetricsPort over the HTTP API of a Prometheus server; the unit is the request."""

    def __init__(self, section: PrometheusMetrics, model_name: str, timeout_s: float = TIMEOUT_S) -> None:
        """`model_name`: what callers ask for; a slot's series carry `<model>@<digest12>` as `model_name`."""
        self._section, self._model_name, self._timeout_s = section, model_name, timeout_s

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        """Both arms from `since`, or in the first look of a stage from the first scrape of every server, to two scrapes
        before `now`; None where that is less than two scrapes, or there is no canary.

        Raises ValueError saying why the look is missed, OSError when the server does not answer.
        """
        every_s = self._section.scrape_interval_s
        end = request.now - LAG_SCRAPES * every_s
        if split.canary is None or end - request.since < LAG_SCRAPES * every_s:
            return None
        names = tuple(served_name(self._model_name, model.digest) for model in (split.champion, split.canary))
        if names[0] == names[1]:
            raise ValueError(f"Both arms are {names[0]}, whose requests are one series. Roll out another model.")
        labels = "{model_name=~" + json.dumps("|".join(map(re.escape, names))) + "}"
        with Promql(self._section.url, self._timeout_s) as server:
            self._check_up(server, labels, names, end)
            asked = [(FINISHED, FINISHED + labels), (LATENCY, LATENCY + labels)]
            if (errors := self._section.errors_query) and WINDOW not in errors:
                asked.append((ERRORS, errors))
            counters = {kind: server.samples(query, request.since, request.now) for kind, query in asked}
            arms = [_ScrapedArm(name, {kind: _of(name, series) for kind, series in counters.items()}) for name in names]
            since, until = self._window(arms, request, end)
            rises = [arm.rises(since, until, every_s) for arm in arms]
            if WINDOW in errors:
                rows = server.vector(errors.replace(WINDOW, f"{round((until - since) * 1000)}ms"), until)
                given = [[Rise(row.labels, row.value) for row in _of(arm.name, rows)] for arm in arms]
                rises = [{**each, ERRORS: values} for each, values in zip(rises, given, strict=True)]
        champion, canary = (
            _counted(arm.name, each, request.slow_over_s) for arm, each in zip(arms, rises, strict=True)
        )
        return LiveMetrics(
            champion=champion,
            canary=canary,
            window_start=since,
            window_end=until,
            graded_until=until,
        )

    def _check_up(self, server: Promql, labels: str, names: Sequence[str], at: float) -> None:
        """Raises ValueError unless every replica of both arms is up."""
        servers = f"group by (model_name, job, instance) ({FINISHED}{labels})"
        query = f"count by (model_name) ({servers} * on (job, instance) group_left () (up == 1))"
        up = server.vector(query, at)
        for name in names:
            replicas = sum(sample.value for sample in _of(name, up))
            if replicas < self._section.replicas:
                raise ValueError(
                    f"{replicas:.0f} of {self._section.replicas} servers of {name} are up in Prometheus. Look at its "
                    "targets, or set rollout.metrics.replicas."
                )

    def _window(self, arms: Sequence[_ScrapedArm], request: LookRequest, end: float) -> tuple[float, float]:
        """Between which moments every server's counters are known at both ends. Raises ValueError where there are
        none: a later look sees them."""
        every_s = self._section.scrape_interval_s
        fresh: list[Scrapes] = []
        for arm in arms:
            for what, series, least in arm.scraped(self._section.replicas):
                scrapes = Scrapes.seen(series, every_s)
                lately = scrapes.fresh(end - LAG_SCRAPES * every_s)
                if len(lately.of) < least:
                    age = f"is {end - scrapes.newest:.0f} s older than the window's end" if scrapes.of else "is missing"
                    raise ValueError(
                        f"The newest sample of {what} {age}. Look at the targets of Prometheus, or set "
                        "rollout.metrics.scrape_interval_s."
                    )
                fresh.append(lately)
        first = request.graded_since is None
        since = max(each.counted_from(request.since) for each in fresh) if first else request.since
        until = min(end, *(each.complete_until for each in fresh))
        if not all(each.covers(since, until) for each in fresh):
            raise ValueError(
                f"Not every server was scraped twice in the {end - request.since:.0f} s since the last look. Wait, or "
                "look at the targets of Prometheus."
            )
        return since, until


class Rise(NamedTuple):
    """How much a series counted in a window."""

    labels: Mapping[str, str]
    value: float


class _ScrapedArm(NamedTuple):
    """Counters of one arm's servers, and of the router's errors where it has them, by kind."""

    name: str
    counters: Mapping[str, Sequence[Series]]

    def scraped(self, replicas: int) -> list[tuple[str, Sequence[Series], int]]:
        """What is scraped as one: a name for it, its series, and how many servers there have to be."""
        slots = [(self.name, [*self.counters[FINISHED], *self.counters[LATENCY]], replicas)]
        return [
            *slots,
            *((f"errors of {self.name}", errors, 1) for kind, errors in self.counters.items() if kind == ERRORS),
        ]

    def rises(self, since: float, until: float, every_s: float) -> dict[str, list[Rise]]:
        """Raises Uncountable as `increase` does."""
        rises: dict[str, list[Rise]] = {}
        slots = Scrapes.seen([*self.counters[FINISHED], *self.counters[LATENCY]], every_s)
        for kind, series in self.counters.items():
            scrapes = Scrapes.seen(series, every_s) if kind == ERRORS else slots
            rises[kind] = [Rise(each.labels, increase(each, scrapes, since, until)) for each in series]
        return rises


def _of(name: str, rows: Sequence[Labelled]) -> list[Labelled]:
    return [row for row in rows if row.labels.get("model_name") == name]


def _counted(name: str, rises: Mapping[str, Sequence[Rise]], slow_over_s: float | None) -> ArmLook:
    """Counts are whole: a query of errors may give fractions, and a fraction of a request is none."""
    edges: dict[float, float] = {}
    for rise in rises[LATENCY]:
        edge = float(rise.labels["le"])
        edges[edge] = edges.get(edge, 0.0) + rise.value
    cumulative = sorted(edges.items())
    if not rises[FINISHED] or not cumulative or not math.isinf(cumulative[-1][0]):
        raise ValueError(
            f"{FINISHED if not rises[FINISHED] else LATENCY} of {name} has no samples in the window. Wait for two "
            "scrapes of each server, or look at its metrics."
        )
    reasons = [(rise.labels.get("finished_reason", ""), rise.value) for rise in rises[FINISHED]]
    answered = round(sum(value for reason, value in reasons if reason in ANSWERED))
    failed = round(sum(value for reason, value in reasons if reason not in ANSWERED | CALLERS))
    if ERRORS in rises:
        failed = _at_router(name, rises[ERRORS])
    slow = _over(cumulative, slow_over_s) if slow_over_s is not None else 0
    counts = UnitCounts(requests=answered + failed, errors=failed, slow=min(slow, answered))
    return ArmLook(units={"": counts}, latencies=_latencies(cumulative))


def _at_router(name: str, rises: Sequence[Rise]) -> int:
    if not rises:
        raise ValueError(
            f"rollout.metrics.errors_query has no value with model_name {name}. Let it give 0 for an arm without "
            "errors."
        )
    failed = round(sum(rise.value for rise in rises))
    if failed < 0:
        raise ValueError(f"rollout.metrics.errors_query gives {failed} errors of {name}. Let it count.")
    return failed


def _over(cumulative: Sequence[tuple[float, float]], threshold_s: float) -> int:
    """Requests over the last edge that is not above the threshold, so none that took longer is missed."""
    below = max((value for edge, value in cumulative if edge <= threshold_s), default=0.0)
    return max(0, round(cumulative[-1][1] - below))


def _latencies(cumulative: Sequence[tuple[float, float]]) -> Latencies:
    values = [0.0, *(value for _, value in cumulative)]
    counts = tuple(max(0.0, after - before) for before, after in pairwise(values))
    return Latencies(edges_s=tuple(edge for edge, _ in cumulative), counts=counts)
