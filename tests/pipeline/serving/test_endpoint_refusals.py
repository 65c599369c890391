"""Every way that a server can misbehave is a refusal, or an error of the one question."""

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.serving.chat import EndpointEngine
from pipeline.serving.client import GIVE_UP_AFTER, read_completion
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import PROBES, Answer

from .asking import MODEL, PROBE_QUESTIONS, REQUESTS, SAMPLING, SERVING, after_probes, always, asked_of, refuse
from .chat_server import KEY, Change, ChatServer, HttpRequest, HttpResponse, as_json, chat_server, completion

pytestmark = pytest.mark.slow


BODY = {"messages": REQUESTS[0].messages, "seed": 1, "temperature": 1.0, "max_tokens": 8, "model": MODEL.uri}
CHOICES = json.loads(completion(BODY).body)["choices"]


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (
            as_json({"error": {"message": "CUDA out of memory"}}),
            "missing required field `choices`): CUDA out of memory",
        ),
        (completion(BODY, choices=[]), "of length >= 1"),
        (completion(BODY, choices=CHOICES * 2), "of length <= 1"),
        (completion(BODY, usage=None), "$.usage"),
        (completion(BODY, choice={"finish_reason": None}), ".finish_reason"),
        (completion(BODY, choice={"finish_reason": "tool_calls"}), "finish_reason is 'tool_calls'"),
        (completion(BODY, choice={"message": {"role": "assistant", "content": None}}), "a choice without a text"),
        (completion(BODY, choices=[{}]), "missing required field `message`"),
        (HttpResponse(200, b"<html>Sign in</html>"), "JSON is malformed"),
    ],
)
def test_a_reply_that_leaves_something_open_is_no_answer(reply: HttpResponse, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        read_completion(reply.body)


LEAVES = st.none() | st.integers() | st.text()
ANYTHING = st.recursive(LEAVES, lambda part: st.lists(part) | st.dictionaries(st.text(), part))


@settings(max_examples=60)
@given(st.binary() | ANYTHING.map(json.dumps).map(str.encode), ANYTHING)
def test_no_reply_is_too_strange_to_be_read(body: bytes, tool_calls: object) -> None:
    message = {"role": "assistant", "content": "It is sent.", "tool_calls": tool_calls}
    for strange in (body, completion(BODY, choice={"message": message}).body):
        with suppress(ValueError):
            assert isinstance(read_completion(strange).text, str)


BAD_REPLIES = [
    (lambda body: completion(body, usage=None), "$.usage"),
    (lambda body: HttpResponse(500), "HTTP 500, 3 times"),
    (lambda body: HttpResponse(200, b"{", promised=100), "the connection broke, 3 times"),
]


@pytest.mark.parametrize(("respond", "detail"), BAD_REPLIES)
def test_a_bad_reply_refuses_the_server_or_one_question(respond: Any, detail: str) -> None:
    words = refuse(always(respond))
    assert detail in words and "SERVING_URL" in words

    def once(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return respond(request.body) if request.body["messages"] == REQUESTS[7].messages else None

    with chat_server(once) as server:
        _, answers = asked_of(server)
    bad = answers.pop("7")
    assert (bad.stop, bad.text, bad.tokens) == ("error", "", 0)
    assert detail in bad.detail
    assert len(answers) == len(REQUESTS) - 1 and "error" not in {answer.stop for answer in answers.values()}


def test_a_prompt_that_is_refused_is_an_error_of_its_question() -> None:
    def too_long(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return as_json({"message": "longer than the context of 8"}, 400) if place == PROBE_QUESTIONS + 1 else None

    with chat_server(too_long) as server:
        _, answers = asked_of(server)
    (bad,) = [answer for answer in answers.values() if answer.stop == "error"]
    assert bad.detail == "HTTP 400: longer than the context of 8"
    assert len(answers) == len(REQUESTS)


def test_a_server_that_drops_at_four_fifths_ends_the_asking() -> None:
    """What was answered before is with the caller. An answer in flight may end after the first drops: enough remain."""
    many = [request.model_copy(update={"key": f"{n}/{request.key}"}) for n in range(5) for request in REQUESTS]
    most = len(many) * 4 // 5

    def drops(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return HttpResponse(200, b"{", promised=100) if place >= most else None

    answers: list[Answer] = []
    with (
        chat_server(after_probes(drops)) as server,
        EndpointEngine(SERVING, Endpoint(server.url), print, 0.001).open("champion", MODEL) as session,
        pytest.raises(RuntimeError, match=f"last {GIVE_UP_AFTER} questions without an answer.*run again"),
    ):
        session.answer(many, SAMPLING, answers.append)
    assert len([answer for answer in answers if answer.stop != "error"]) == most
    assert len(answers) < len(many)


def test_a_server_that_fails_now_and_then_is_asked_to_the_end() -> None:
    def every_second(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return HttpResponse(500) if request.body["seed"] % 2 else None

    many = [request.model_copy(update={"key": f"{n}/{request.key}"}) for n in range(2) for request in REQUESTS]
    settings = SERVING.model_copy(update={"in_flight": 1, "attempts": 1})
    with chat_server(after_probes(every_second)) as server:
        _, answers = asked_of(server, many, settings)
    assert [answer.stop for answer in answers.values()].count("error") == len(REQUESTS) > GIVE_UP_AFTER
    assert len(answers) == len(many)


@pytest.mark.parametrize(
    ("status", "instruction"),
    [
        (401, "Set SERVING_API_KEY"),
        (403, "Set SERVING_API_KEY"),
        (404, "Set SERVING_URL .* and evaluation.serving.champion"),
        (302, "Set SERVING_URL"),
        (405, "Set SERVING_URL"),
    ],
)
def test_a_status_that_says_no_raises_what_to_set(status: int, instruction: str) -> None:
    no = HttpResponse(status, json.dumps({"error": {"message": f"no {KEY} here"}}).encode(), {"Location": "/v2"})
    words = refuse(always(lambda body: no))
    with (
        chat_server(after_probes(always(lambda body: no))) as server,
        EndpointEngine(SERVING, Endpoint(server.url, KEY), print).open("champion", MODEL) as session,
        pytest.raises(ValueError, match=instruction) as refused,
    ):
        session.answer(REQUESTS, SAMPLING, lambda answer: pytest.fail("an answer"))
    assert f"HTTP {status}" in words and KEY not in words and KEY not in str(refused.value)
    assert str(refused.value).partition("HTTP")[2] == words.partition("HTTP")[2]


def test_a_server_that_cannot_be_asked_is_refused() -> None:
    engine = EndpointEngine(SERVING, Endpoint("http://127.0.0.1:9/v1"), print, backoff_s=0.001)
    with pytest.raises(ValueError, match=r"no connection, 3 times\. See to it, or set SERVING_URL"):
        engine.open("champion", MODEL).__enter__()


def by_luck(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
    return completion(request.body, seed=place)


def sure_but_once(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
    return completion(request.body, seed=place if request.body["messages"] == PROBES[6] else 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (by_luck, "The endpoint does not draw by seed"),
        (sure_but_once, "The endpoint does not draw by seed"),
        (always(lambda body: completion(body, seed=7)), "8 questions in one way under two seeds"),
        (
            always(lambda body: completion(body, model="tuned-7b-2026-01-01")),
            "answers as 'tuned-7b-2026-01-01' where 'tuned-7b' was asked",
        ),
    ],
)
def test_a_server_that_is_another_or_ignores_seeds_is_refused(change: Change, words: str) -> None:
    assert words in refuse(change)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000/v1", "http://me:secret@host/v1", "http://host/v1?key=secret"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="SERVING_URL") as refused:
        EndpointEngine(SERVING, Endpoint(url, KEY), print)
    assert "secret" not in str(refused.value)
