"""Thumbs for an answer of the gateway, as the traces' source and the governed path read them."""

import hashlib
import time

import pytest

from pipeline.core import layout
from pipeline.recipe.sources import DemoSource
from pipeline.recipe.traces import Traces
from pipeline.rollout.evidence import LiveMetrics, LookRequest
from pipeline.rollout.gateway.metrics import SpanMetrics
from pipeline.rollout.grading import by_thumbs
from pipeline.rollout.router import route
from pipeline.traces.sources.otel import Otel
from tests.pipeline.rollout.gateway.world import NAME, World, awaited

pytestmark = pytest.mark.slow

METADATA = {"user_consent": "true", "region": "us"}
KNOWN = "a" * 32


def send(gateway: World, **body):
    return gateway.client.post("/v1/feedback", json=body)


def scores_of(gateway: World) -> list:
    source = Otel(str(gateway.store.path(layout.served(NAME))))
    parts = [part for part in source.parts() if part.holds == "scores"]
    return [score for part in parts for rows in source.rows(part, hashlib.sha256()) for score in rows.scores]


def said_of(gateway: World, trace_id: str) -> list[tuple[str, float | None, str]]:
    return [(each.name, each.value, each.source) for each in scores_of(gateway) if each.trace_id == trace_id]


def answered(gateway: World) -> str:
    """What an answer calls itself, and its trace."""
    headers = gateway.post(user="somebody", metadata=METADATA).headers
    assert headers["x-request-id"] == headers["x-trace-id"]
    return headers["x-request-id"]


@pytest.mark.parametrize(
    ("score", "value"), [("up", 1.0), ("down", 0.0), (True, 1.0), (False, 0.0), (0.25, 0.25), (1, 1.0)]
)
def test_feedback_is_a_score_of_the_answer(gateway, score, value):
    trace_id = answered(gateway)
    reply = send(gateway, id=trace_id, score=score)
    assert (reply.status_code, reply.json()["trace_id"]) == (200, trace_id)
    assert said_of(gateway, trace_id) == [("thumb", value, "user")]


@pytest.mark.parametrize(
    "body",
    [
        {"id": "chatcmpl-1", "score": "up"},
        {"id": KNOWN, "score": "sideways"},
        {"id": KNOWN, "score": 2},
        {"id": KNOWN, "score": -0.1},
        {"id": KNOWN},
        {"score": "up"},
        {"id": "", "score": "up"},
        {"id": KNOWN, "score": "up", "name": ""},
        {"id": KNOWN, "score": "up", "thumb": 1},
        {"id": KNOWN, "score": "up", "user": "somebody else"},
        {"id": KNOWN, "score": "up", "comment": "x" * 5000},
        [1],
    ],
)
def test_what_is_no_feedback_is_refused(gateway, body):
    before = len(scores_of(gateway)) if gateway.store.path(layout.feedback(NAME)).is_dir() else 0
    reply = gateway.client.post("/v1/feedback", json=body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "x-request-id" in reply.json()["error"]["message"]
    assert not before or len(scores_of(gateway)) == before


def test_thumbs_that_are_posted_are_grades_of_their_arm(gateway: World) -> None:
    awaited(lambda: gateway.state().served == gateway.state().recorded)  # what was asked before
    split, since = gateway.split(50), time.time()
    liked, disliked, _ = (answered(gateway) for _ in range(3))
    for trace_id, score in ((liked, "up"), (disliked, "down"), (disliked, "up")):  # they changed their mind
        assert send(gateway, id=trace_id, score=score).is_success
    awaited(lambda: gateway.state().served == gateway.state().recorded)
    arm = route(split, "somebody")
    metrics = SpanMetrics(gateway.store, NAME, by_thumbs(0.0), Traces(source=DemoSource()))

    def look() -> LiveMetrics | None:
        seen = metrics.look(split, LookRequest(since=since, now=time.time(), slow_over_s=None))
        assert seen is not None
        return seen if getattr(seen, arm).sum().requests == 3 else None

    counts = getattr(awaited(look), arm).sum()
    assert (counts.graded, counts.correct, counts.ungraded) == (2, 2, 1)
    waits = SpanMetrics(gateway.store, NAME, by_thumbs(60.0), Traces(source=DemoSource()))
    early = waits.look(split, LookRequest(since=since, now=time.time(), slow_over_s=None))
    assert early is not None and getattr(early, arm).sum().graded == 0, "somebody may still say something"
