"""Looks at a real Prometheus (skipped where it is not installed), and at replies that are none."""

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from k8s.prometheus import PICKER, SERVERS, PrometheusLooks, Series
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import PrometheusMetrics
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.router import Split
from tests.servers import HttpAsked, answering, prometheus

SCRAPE_S = 15
START = 1_700_000_000
NOW = START + 600.0
"""Six hundred seconds of samples lie before it; a window from START + 270 ends at START + 570."""
CHAMPION, CANARY = (ModelRef(uri=f"s3://{letter}", digest=letter * 64) for letter in "ab")
A, B = "model@" + "a" * 12, "model@" + "b" * 12
EDGES = (0.5, 1.0, 2.0)


def split(champion: ModelRef = CHAMPION, canary: ModelRef | None = CANARY) -> Split:
    weight = 0 if canary is None else 5
    return Split(
        rollout="r", epoch=1, champion=champion, champion_weight=100 - weight, canary=canary, canary_weight=weight
    )


def request(since: float = START + 270.0, slow: float | None = None, now: float = NOW) -> LookRequest:
    return LookRequest(since=since, now=now, slow_over_s=slow)


def look(url: str, asked: LookRequest | None = None, series: Series = SERVERS, **settings: Any) -> LiveMetrics | None:
    section = PrometheusMetrics(url=url, scrape_interval_s=SCRAPE_S, **settings)
    return PrometheusLooks(section, "model", series).look(split(), asked or request())


class Database:
    """Samples at each scrape, as OpenMetrics: `rate` in requests a scrape, on one instance a model and more."""

    def __init__(self) -> None:
        self._series: dict[str, list[tuple[int, float]]] = {}

    def add(self, name: str, values: Callable[[int], float | None], **labels: str) -> None:
        text = ",".join(f'{key}="{value}"' for key, value in labels.items())
        for step in range(41):
            if (value := values(step)) is not None:
                self._series.setdefault(f"{name}{{{text}}}", []).append((START + step * SCRAPE_S, value))

    def server(self, model: str, instance: str, rate: float) -> None:
        """A server of vLLM: half of the answers take up to 1 s, the rest up to 2 s; one in ten is aborted."""
        place = {"job": "vllm", "instance": instance}

        def count(share: float) -> Callable[[int], float | None]:
            return lambda step: step * rate * share

        self.add("up", lambda step: 1, **place)
        for reason, share in (("stop", 0.8), ("length", 0.2), ("abort", 0.1), ("error", 0.0)):
            self.add(
                "vllm:request_success_total",
                count(share),
                model_name=model,
                finished_reason=reason,
                engine="0",
                **place,
            )
        self.add("llm_d_epp_request_total", count(1.0), model_name="any", target_model_name=model, **place)
        for edge, share in (*zip(map(str, EDGES), (0.0, 0.5, 1.0), strict=True), ("+Inf", 1.0)):
            self.add("vllm:e2e_request_latency_seconds_bucket", count(share), model_name=model, le=edge, **place)
            self.add(
                "llm_d_epp_request_duration_seconds_bucket", count(share), target_model_name=model, le=edge, **place
            )

    def text(self) -> str:
        rows = [f"{series} {value} {at}" for series, points in self._series.items() for at, value in points]
        return "\n".join(rows) + "\n"


@contextmanager
def serving(
    folder: Path, *servers: dict[str, Any], more: Callable[[Database], object] = lambda _: None
) -> Generator[str]:
    database = Database()
    for server in servers:
        database.server(**server)
    more(database)
    with prometheus(folder, database.text()) as url:
        yield url


def sums(arm: ArmLook) -> UnitCounts:
    assert list(arm.units) == [""]
    return arm.units[""]


CHAMPIONS = ({"model": A, "instance": "a1", "rate": 40.0}, {"model": A, "instance": "a2", "rate": 60.0})
CANARIES = ({"model": B, "instance": "b1", "rate": 5.0},)


def test_counts_are_those_between_two_moments(tmp_path: Path) -> None:
    """Twenty scrapes of 100 and of 5 requests lie in the window of 300 s."""
    with serving(tmp_path, *CHAMPIONS, *CANARIES) as url:
        seen = look(url, request(slow=1.0))
        assert seen is not None
        assert (seen.window_start, seen.window_end) == (START + 270, START + 570)
        assert sums(seen.champion) == UnitCounts(requests=2000, slow=1000), "aborts are the callers'"
        assert sums(seen.canary) == UnitCounts(requests=100, slow=50)
        assert seen.champion.latencies.edges_s == (*EDGES, float("inf"))
        assert seen.champion.latencies.counts == pytest.approx((0, 1000, 1000, 0))
        assert look(url, request(slow=1.0), PICKER) == seen, "whose errors have no series before the first"
        between = look(url, request(slow=1.7))
        assert between is not None and sums(between.canary).slow == 50, "none over the threshold is missed"


@pytest.mark.slow
def test_errors_come_from_the_routers_metric(tmp_path: Path) -> None:
    def errors(database: Database) -> None:
        for model, rate in ((A, 0.2), (B, 1.0)):
            database.add("router_errors_total", lambda step, rate=rate: step * rate, model_name=model, job="router")

    query = "sum by (model_name) (increase(router_errors_total[{window}]))"
    with serving(tmp_path, *CHAMPIONS, *CANARIES, more=errors) as url:
        seen = look(url, errors_query=query)
        assert seen is not None
        assert sums(seen.canary) == UnitCounts(requests=120, errors=20), "requests without an answer are requests"
        assert sums(seen.champion) == UnitCounts(requests=2004, errors=4)
        counted = look(url, errors_query="router_errors_total")
        assert counted is not None and (counted.canary, counted.champion) == (seen.canary, seen.champion)
        with pytest.raises(ValueError, match=f"no errors of model_name {A}"):
            look(url, errors_query='router_errors_total{model_name="' + B + '"}')
        with pytest.raises(ValueError, match="Mend the query"):
            look(url, errors_query="sum by (")


def vector(*rows: tuple[dict[str, str], str]) -> dict[str, Any]:
    result = [{"metric": labels, "value": [NOW, value]} for labels, value in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


class Reply:
    """What a stand-in of the HTTP API answers: right vectors, but for what a test changes."""

    def __init__(self) -> None:
        self.status, self.body, self.changes = 200, b"", dict[str, Any]()
        self.queries: list[dict[str, str]] = []

    def to(self, form: dict[str, str]) -> bytes:
        self.queries.append(form)
        query = form["query"]
        if self.body or self.status != 200:
            return self.body
        kind = next(word for word in ("count by", "errors", "request_success", "latency") if word in query)
        rows = {
            "count by": vector(*(({"model_name": name}, "1") for name in (A, B))),
            "errors": vector(*(({"model_name": name}, "0.6") for name in (A, B))),
            "request_success": vector(*(({"model_name": name, "finished_reason": "stop"}, "10") for name in (A, B))),
            "latency": vector(*(({"model_name": name, "le": le}, "10") for name in (A, B) for le in ("1", "+Inf"))),
        }
        return json.dumps({**rows[kind], **self.changes.get(kind, {})}).encode()


@pytest.fixture
def stand_in() -> Iterator[tuple[str, Reply]]:
    reply = Reply()

    def respond(asked: HttpAsked) -> tuple[int, bytes]:
        body = reply.to({key: value for key, (value,) in parse_qs(asked.body.decode()).items()})
        return reply.status, body

    with answering(respond) as url:
        yield url, reply


def test_fractions_of_requests_are_rounded(stand_in: tuple[str, Reply]) -> None:
    seen = look(stand_in[0], request(slow=0.5), errors_query="errors[{window}]")
    assert seen is not None
    assert sums(seen.canary) == UnitCounts(requests=11, errors=1, slow=10), "never more slow than answered"
    assert stand_in[1].queries[-1] == {"query": "errors[300000ms]", "time": f"{NOW - 30:.3f}"}, "of the same window"


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("request_success", vector(({"model_name": A, "finished_reason": "stop"}, "1")), f"{B} has no samples"),
        ("request_success", vector(({"model_name": A, "finished_reason": "stop"}, "NaN")), "is nan for"),
        ("latency", vector(({"model_name": A, "le": "1"}, "1"), ({"model_name": B, "le": "+Inf"}, "1")), f"{A} has no"),
        ("latency", {"warnings": ["store 2 is away"]}, "store 2 is away"),
        ("count by", vector(({"model_name": A}, "1"), ({"model_name": "model"}, "1")), f"0 of 1 servers of {B}"),
        ("count by", {"data": {"result": [{"metric": {}, "value": "1"}]}}, "is no vector"),
        ("latency", {"status": "error", "error": "too many samples"}, "too many samples"),
    ],
)
def test_half_an_answer_is_a_missed_look(
    stand_in: tuple[str, Reply], kind: str, change: dict[str, Any], words: str
) -> None:
    stand_in[1].changes[kind] = change
    with pytest.raises(ValueError, match=words):
        look(stand_in[0])


def test_a_split_without_a_canary_has_no_look(stand_in: tuple[str, Reply]) -> None:
    port = PrometheusLooks(PrometheusMetrics(url=stand_in[0]), "model")
    assert port.look(split(canary=None), request()) is None
