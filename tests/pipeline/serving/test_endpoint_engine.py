"""A server that others keep: asked by seed and answered as it comes, and refused with a word where it is none."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.recipe.serving import EndpointServing
from pipeline.serving.client import GIVE_UP_AFTER
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.endpoint_engine import EndpointEngine
from pipeline.serving.inference import PROBES, Answer, AnswerRequest, Decoding, Sampling
from pipeline.storage import ModelRef

from .chat_server import (
    KEY,
    NAME,
    VLLM_ROUTES,
    Change,
    ChatServer,
    HttpRequest,
    HttpResponse,
    as_json,
    chat_server,
    completion,
    drawn,
    prompt_ids,
    tokenize,
)

MODEL = ModelRef(uri="elsewhere", digest="sha256:0f")
SERVING = EndpointServing(champion=NAME, candidate="other-7b", in_flight=8, timeout_s=20, attempts=3)
SAMPLING = Sampling(temperature=1.0, max_completion_tokens=8)
PROBE_QUESTIONS = 3 * len(PROBES)
REQUESTS = [
    AnswerRequest(key=f"{n}", messages=[{"role": "user", "content": f"Question {n}?"}], seed=1000 + n)
    for n in range(40)
]  # fmt: skip


def asked_of(
    server: ChatServer, requests: list[AnswerRequest] = REQUESTS, settings: EndpointServing = SERVING,
    sampling: Sampling = SAMPLING, key: str = KEY, arm: str = "champion", log: Callable[[str], None] = print,
) -> tuple[Decoding, dict[str, Answer]]:  # fmt: skip
    answers: dict[str, Answer] = {}
    with EndpointEngine(settings, Endpoint(server.url, key), log, backoff_s=0.001).open(arm, MODEL) as session:
        session.answer(requests, sampling, lambda answer: answers.update({answer.key: answer}))
    return session.decoding, answers


def after_probes(change: Change) -> Change:
    """The server turns bad once it has been accepted."""

    def changed(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return change(server, request, place - PROBE_QUESTIONS) if place >= PROBE_QUESTIONS else None

    return changed


def always(respond: Callable[[dict[str, Any]], HttpResponse]) -> Change:
    return lambda server, request, place: respond(request.body)


def refuse(change: Change, settings: EndpointServing = SERVING) -> str:
    """The words of a refusal before anything was asked but the probes."""
    with chat_server(change) as server:
        engine = EndpointEngine(settings, Endpoint(server.url, KEY), print, backoff_s=0.001)
        with pytest.raises(ValueError) as refused, engine.open("champion", MODEL):
            pytest.fail("it was accepted")
    return str(refused.value)


def test_each_answer_follows_its_seed_whatever_is_in_flight() -> None:
    four = threading.Barrier(4)

    def together(server: ChatServer, request: HttpRequest, place: int) -> None:
        four.wait(20)

    with chat_server(after_probes(together)) as server:
        _, many = asked_of(server)
    with chat_server() as server:
        _, one = asked_of(server, list(reversed(REQUESTS)), SERVING.model_copy(update={"in_flight": 1}))
    assert server.most_in_flight == 1
    assert {key: answer.text for key, answer in many.items()} == {key: answer.text for key, answer in one.items()}
    for request in REQUESTS:
        asked = {"messages": request.messages, "seed": request.seed, "temperature": 1.0, "max_tokens": 8}
        text, stop = drawn(asked)
        answer = many[request.key]
        assert (answer.text, answer.stop, answer.detail) == (text, stop, "")
        assert (answer.tokens, answer.prompt_tokens) == (len(text.split()), len(prompt_ids(request.messages)))
    assert {answer.stop for answer in many.values()} == {"stop", "length"}


def test_only_portable_fields_are_sent() -> None:
    with chat_server() as server:
        asked_of(server, REQUESTS[:1], arm="candidate")
    body = server.asked[-1].body
    assert body == {
        "model": "other-7b", "messages": REQUESTS[0].messages, "seed": 1000, "temperature": 1.0, "top_p": 1, "n": 1,
        "max_tokens": 8,
    }  # fmt: skip
    assert server.asked[-1].headers["Authorization"] == f"Bearer {KEY}"
    assert server.asked[-1].headers["Accept-Encoding"] == "identity"


def test_no_more_are_in_flight_than_the_recipe_says() -> None:
    def slow(server: ChatServer, request: HttpRequest, place: int) -> None:
        time.sleep(0.005)

    with chat_server(slow) as server:
        asked_of(server, settings=SERVING.model_copy(update={"in_flight": 3}))
    assert server.most_in_flight == 3


def test_answers_come_as_they_are_there_in_the_callers_thread() -> None:
    taken: list[str] = []
    first_taken = threading.Event()

    def last_waits(server: ChatServer, request: HttpRequest, place: int) -> None:
        if request.body["messages"] == REQUESTS[-1].messages:
            assert first_taken.wait(20), "no answer came before this one was there"

    def take(answer: Answer) -> None:
        assert threading.current_thread() is threading.main_thread()
        taken.append(answer.key)
        first_taken.set()

    with chat_server(last_waits) as server:
        engine = EndpointEngine(SERVING, Endpoint(server.url), print)
        with engine.open("champion", MODEL) as session:
            session.answer(REQUESTS, SAMPLING, take)
    assert sorted(taken) == sorted(request.key for request in REQUESTS)


def test_a_caller_that_fails_ends_the_asking() -> None:
    def take(answer: Answer) -> None:
        raise OSError("the disk is full")

    with chat_server() as server:
        with (
            EndpointEngine(SERVING, Endpoint(server.url), print).open("champion", MODEL) as session,
            pytest.raises(OSError, match="the disk is full"),
        ):
            session.answer(REQUESTS * 20, SAMPLING, take)
        assert len(server.asked) < PROBE_QUESTIONS + 20 * len(REQUESTS)


def test_what_passes_is_asked_again() -> None:
    def unsteady(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        bad = (HttpResponse(500), HttpResponse(429, b"", {"Retry-After": "0"}), HttpResponse(200, b"{", promised=900))
        return bad[place // 2 % 3] if place % 2 == 0 else None

    one = SERVING.model_copy(update={"in_flight": 1})
    with chat_server(unsteady) as server:
        _, answers = asked_of(server, settings=one)
    assert {answer.stop for answer in answers.values()} == {"stop", "length"}
    assert len(server.asked) == 2 * (len(REQUESTS) + PROBE_QUESTIONS)


def body_of_an_error(body: dict[str, Any]) -> HttpResponse:
    return as_json({"error": {"message": "CUDA out of memory", "type": "internal"}})


def without_usage(body: dict[str, Any]) -> HttpResponse:
    return completion(body, usage=None)


def a_choice(**changes: Any) -> Callable[[dict[str, Any]], HttpResponse]:
    return lambda body: completion(body, choice=changes)


def choices(number: int) -> Callable[[dict[str, Any]], HttpResponse]:
    return lambda body: completion(body, choices=json.loads(completion(body).body)["choices"] * number)


BAD_REPLIES = {
    "the body of an error": (body_of_an_error, "HTTP 200 with the body of an error: CUDA out of memory"),
    "no choices": (choices(0), "0 choices where one was asked for"),
    "two choices": (choices(2), "2 choices where one was asked for"),
    "no usage": (without_usage, "no usage"),
    "a null finish_reason": (a_choice(finish_reason=None), "finish_reason is None"),
    "an unknown finish_reason": (a_choice(finish_reason="tool_calls"), "finish_reason is 'tool_calls'"),
    "no text": (a_choice(message={"role": "assistant", "content": None}), "a choice without a text"),
    "a page": (lambda body: HttpResponse(200, b"<html>Sign in</html>"), "not JSON"),
    "HTTP 500": (lambda body: HttpResponse(500), "HTTP 500, 3 times"),
    "a body that is cut": (lambda body: HttpResponse(200, b"{", promised=100), "the connection broke, 3 times"),
}


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_a_server_whose_replies_are_no_answers_is_refused(name: str) -> None:
    respond, detail = BAD_REPLIES[name]
    words = refuse(always(respond))
    assert detail in words
    assert "SERVING_URL" in words


@pytest.mark.parametrize("name", BAD_REPLIES)
def test_one_bad_reply_is_an_error_of_its_question(name: str) -> None:
    respond, detail = BAD_REPLIES[name]

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


@pytest.mark.parametrize("endless", [True, False], ids=["trickles", "is silent"])
def test_an_answer_that_never_ends_is_an_error(endless: bool) -> None:
    def stuck(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        if request.body["messages"] != REQUESTS[0].messages:
            return None
        if not endless:
            server.closing.wait()
        return HttpResponse(200, b"", endless=endless)

    with chat_server(stuck) as server:
        settings = SERVING.model_copy(update={"timeout_s": 1.0, "attempts": 2})
        _, answers = asked_of(server, REQUESTS[:3], settings)
    assert answers["0"].stop == "error"
    assert answers["0"].detail == "no answer within the time limit, 2 times"
    assert len(server.asked) == PROBE_QUESTIONS + 4


def test_a_server_that_drops_at_four_fifths_ends_the_asking() -> None:
    """What was answered before is with the caller."""
    many = [request.model_copy(update={"key": f"{n}/{request.key}"}) for n in range(3) for request in REQUESTS]
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


def test_an_answer_under_another_name_is_refused() -> None:
    words = refuse(always(lambda body: completion(body, model="tuned-7b-2026-01-01")))
    assert "answers as 'tuned-7b-2026-01-01' where 'tuned-7b' was asked" in words
    assert words.endswith("Set evaluation.serving.champion to the name that it answers under.")


def test_a_server_without_connection_is_refused() -> None:
    with chat_server() as server:
        pass
    engine = EndpointEngine(SERVING, Endpoint(server.url), print, backoff_s=0.001)
    with pytest.raises(ValueError, match=r"no connection, 3 times\. See to it, or set SERVING_URL"):
        engine.open("champion", MODEL).__enter__()


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_server_that_ignores_seeds_is_refused(everywhere: bool) -> None:
    """Also one whose model is sure of its answers to all but one question."""

    def lucky(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
        sure = not everywhere and request.body["messages"] != PROBES[6]
        return completion(request.body, seed=0 if sure else place)

    assert "The endpoint does not draw by seed" in refuse(lucky)


def test_a_server_that_answers_alike_to_every_seed_is_refused() -> None:
    words = refuse(always(lambda body: completion(body, seed=7)))
    assert "The endpoint does not draw by seed" in words and "8 questions in one way under two seeds" in words


def test_decoding_is_what_a_server_of_vllm_says() -> None:
    with chat_server(routes=VLLM_ROUTES, fingerprint="fp-1") as server:
        decoding, _ = asked_of(server, [])
    assert (decoding.engine, decoding.version) == ("endpoint", "0.31.0, fingerprint fp-1")
    assert (decoding.device, decoding.dtype, decoding.stop_ids) == ("unknown", "unknown", ())
    assert (decoding.context, decoding.batch_invariant) == (4096, False)


def test_decoding_of_a_bare_server_is_unknown() -> None:
    with chat_server() as server:
        decoding, _ = asked_of(server, [])
    assert (decoding.version, decoding.context) == ("unknown", None)
    assert len(decoding.tokens_digest) == 64


def of_system(body: dict[str, Any]) -> bool:
    return body["messages"][0]["role"] == "system"


def test_another_tokenizer_has_another_digest() -> None:
    def otherwise(body: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": [id + 1 for id in tokenize(body)["tokens"]]}

    def no_ids(body: dict[str, Any]) -> dict[str, Any]:  # as llama.cpp's route of that name does
        return {"tokens": []}

    def refuses_system(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return HttpResponse(400) if of_system(request.body) else None

    def longer(body: dict[str, Any]) -> HttpResponse:
        count = len(prompt_ids(body["messages"]))
        return completion(body, usage={"prompt_tokens": count + of_system(body), "completion_tokens": 8})

    def some_ids(body: dict[str, Any]) -> dict[str, Any] | None:
        return None if of_system(body) else tokenize(body)

    digests: list[str] = []
    for change, routes in (
        (None, {"/tokenize": tokenize}),
        (None, {"/tokenize": otherwise}),
        (None, {}),
        (always(longer), {}),
        (refuses_system, {"/tokenize": some_ids}),
        (refuses_system, {}),
    ):
        with chat_server(change or (lambda server, request, place: None), routes) as server:
            digests.append(asked_of(server, [])[0].tokens_digest)
    assert len(set(digests)) == len(digests)
    with chat_server(routes={"/tokenize": no_ids}) as server:
        assert asked_of(server, [])[0].tokens_digest == digests[2], "ids that are not those of the answers"


def test_a_route_that_fails_for_now_leaves_no_other_digest() -> None:
    """Or the journal of yesterday's answers would not be found today."""

    def fails(body: dict[str, Any]) -> dict[str, Any]:
        raise ConnectionResetError

    with (
        chat_server(routes={"/tokenize": fails}) as server,
        pytest.raises(RuntimeError, match=r"/tokenize fails .the connection broke.\. See to the server, run again"),
    ):
        asked_of(server, [])


def test_a_server_that_is_replaced_under_way_is_refused() -> None:
    def replaced(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        return completion(request.body, "fp-2") if place >= 10 else None

    with (
        chat_server(after_probes(replaced), fingerprint="fp-1") as server,
        pytest.raises(RuntimeError, match="its fingerprint was 'fp-1' and is 'fp-2'"),
    ):
        asked_of(server)


def test_fingerprints_that_alternate_are_none() -> None:
    log: list[str] = []
    change: Change = lambda server, request, place: completion(request.body, f"fp-{place % 2}")  # noqa: E731
    with chat_server(change) as server:
        decoding, answers = asked_of(server, log=log.append)
    assert decoding.version == "unknown" and len(answers) == len(REQUESTS)
    assert any("2 fingerprints" in line for line in log)


def test_another_arm_has_no_name() -> None:
    engine = EndpointEngine(SERVING, Endpoint("http://127.0.0.1:1/v1"), print)
    with pytest.raises(ValueError, match="names no model for the judge"):
        engine.open("judge", MODEL).__enter__()


def test_the_key_is_nowhere_but_in_its_header(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def echo(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        headers = json.dumps({"error": {"message": str(request.headers)}}).encode()
        return HttpResponse(400, headers) if place % 2 else None

    log: list[str] = []
    with caplog.at_level(logging.DEBUG), chat_server(after_probes(echo)) as server:
        decoding, answers = asked_of(server, log=log.append)
    out = capsys.readouterr()
    assert any("<hidden>" in answer.detail for answer in answers.values())
    shown = [repr(answers), repr(decoding), *log, caplog.text, out.out, out.err]
    assert not [text for text in shown if KEY in text]


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000/v1", "http://me:secret@host/v1", "http://host/v1?key=secret"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="SERVING_URL") as refused:
        EndpointEngine(SERVING, Endpoint(url, KEY), print)
    assert "secret" not in str(refused.value)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server() as proxy, chat_server() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        asked_of(server, REQUESTS[:1])
        assert proxy.requests == []
