"""Thumbs for an answer of the gateway, as the traces' source and the governed path read them."""

import hashlib
import json
import time

import pytest

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe import Rewards
from pipeline.recipe.traces import DemoSource, Traces
from pipeline.rollout.evidence import LiveMetrics, LookRequest
from pipeline.rollout.gateway.asked import BadRequest, CallerRequest
from pipeline.rollout.gateway.feedback import FeedbackRecorder
from pipeline.rollout.gateway.metrics import SpanMetrics
from pipeline.rollout.gateway.spans import FLUSH_S, Served, Try, line
from pipeline.rollout.grading import by_thumbs
from pipeline.rollout.router import route
from pipeline.traces.sources.otel import Otel
from tests.pipeline.rollout.gateway.slot_server import response
from tests.pipeline.rollout.gateway.world import NAME, World, awaited

pytestmark = pytest.mark.slow

METADATA = {"user_consent": "true", "region": "us"}
ASKED = CallerRequest(b'{"messages": [{"role": "user", "content": "Hi"}]}', {}, trusted=False)
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}]}


def send(gateway: World, **body):
    return gateway.client.post("/v1/feedback", json=body)


def scores_of(gateway: World) -> list:
    source = Otel(str(gateway.store.path(layout.served(NAME))))
    parts = [part for part in source.parts() if part.holds == "scores"]
    return [score for part in parts for rows in source.rows(part, hashlib.sha256()) for score in rows.scores]


def said_of(gateway: World, trace_id: str) -> list[tuple[str, float | None, str]]:
    return [(each.name, each.value, each.source) for each in scores_of(gateway) if each.trace_id == trace_id]


def answered_as(gateway: World, id: str) -> str:
    """Trace id of an answer whose response has the id."""
    for slot in (gateway.champion, gateway.canary):
        slot.answer = lambda server, body: response(json.dumps({"id": id, **ANSWER}).encode())
    return gateway.post(user="somebody", metadata=METADATA).headers["x-trace-id"]


@pytest.mark.parametrize(
    ("score", "value"), [("up", 1.0), ("down", 0.0), (True, 1.0), (False, 0.0), (0.25, 0.25), (1, 1.0)]
)
def test_feedback_is_a_score_of_the_answer(gateway, score, value):
    trace_id = answered_as(gateway, f"chatcmpl-{score}-{value}")
    reply = send(gateway, id=f"chatcmpl-{score}-{value}", score=score)
    assert (reply.status_code, reply.json()["trace_id"]) == (200, trace_id)
    assert said_of(gateway, trace_id) == [("thumb", value, "user")]


def test_a_line_on_its_way_is_awaited(tmp_path):
    store, pauses, written = Store(tmp_path), [], Served(ASKED, "a" * 32, "u", "user")
    path = store.path(layout.served(NAME), "day.jsonl")
    written.tries.append(Try("champion", "d", "m", 1, 2))
    path.parent.mkdir(parents=True)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        path.write_bytes(line(written, with_text=True, now=time.time()))
        assert recorder.take(b'{"id": "' + b"a" * 32 + b'", "score": "up", "user": "bob"}') == "a" * 32, "no lock"

    recorder = FeedbackRecorder(store, NAME, with_text=True, pause=pause)
    assert recorder.take(b'{"id": "' + b"a" * 32 + b'", "score": "up"}') == "a" * 32
    assert pauses == [2 * FLUSH_S]
    with pytest.raises(BadRequest, match="No answer here"):
        recorder.take(b'{"id": "unknown", "score": "up"}')


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"id": "nobody-answered", "score": "up"}, 404),
        ({"id": "0" * 32, "score": "up"}, 404),
        ({"id": "known", "score": "sideways"}, 400),
        ({"id": "known", "score": 2}, 400),
        ({"id": "known", "score": -0.1}, 400),
        ({"id": "known"}, 400),
        ({"score": "up"}, 400),
        ({"id": "", "score": "up"}, 400),
        ({"id": "known", "score": "up", "name": ""}, 400),
        ({"id": "known", "score": "up", "thumb": 1}, 400),
        ({"id": "known", "score": "up", "comment": "x" * 5000}, 400),
        ([1], 400),
    ],
)
def test_what_is_no_feedback_is_refused(gateway, body, status):
    answered_as(gateway, "known")
    before = len(scores_of(gateway)) if gateway.store.path(layout.feedback(NAME)).is_dir() else 0
    reply = gateway.client.post("/v1/feedback", json=body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, "invalid_request_error")
    assert not before or len(scores_of(gateway)) == before


def test_thumbs_that_are_posted_are_grades_of_their_arm(gateway: World) -> None:
    awaited(lambda: gateway.state().served == gateway.state().recorded)  # what was asked before
    split, since = gateway.split(50), time.time()
    for number, score in enumerate(("up", "down", "")):
        answered_as(gateway, f"chatcmpl-{number}")
        if score:
            assert send(gateway, id=f"chatcmpl-{number}", score=score).is_success
    send(gateway, id="chatcmpl-1", score="up")  # they changed their mind
    awaited(lambda: gateway.state().served == gateway.state().recorded)
    arm = route(split, "somebody")
    metrics = SpanMetrics(gateway.store, NAME, by_thumbs(Rewards().feedback, 0.0), Traces(source=DemoSource()))

    def look() -> LiveMetrics | None:
        seen = metrics.look(split, LookRequest(since=since, now=time.time(), slow_over_s=None))
        assert seen is not None
        return seen if getattr(seen, arm).sum().requests == 3 else None

    counts = getattr(awaited(look), arm).sum()
    assert (counts.graded, counts.correct, counts.ungraded) == (2, 2, 1)
    waits = SpanMetrics(gateway.store, NAME, by_thumbs(Rewards().feedback, 60.0), Traces(source=DemoSource()))
    early = waits.look(split, LookRequest(since=since, now=time.time(), slow_over_s=None))
    assert early is not None and getattr(early, arm).sum().graded == 0, "somebody may still say something"
