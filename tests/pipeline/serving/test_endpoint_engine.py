"""A server that others keep: asked by seed, answered as it comes, and recorded as far as it shows itself."""

import io
import json
import threading
import time
from typing import Any

import pytest

from pipeline.serving.chat import EndpointEngine
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Answer
from tests.pipeline.core.tool_templates import LOOKUP, OFFERED, answer

from .asking import MODEL, PROBE_QUESTIONS, REQUESTS, SAMPLING, SERVING, after_probes, always, asked_of
from .chat_server import (
    KEY,
    VLLM_ROUTES,
    Change,
    ChatServer,
    HttpRequest,
    HttpResponse,
    chat_server,
    completion,
    drawn,
    prompt_ids,
)

pytestmark = pytest.mark.slow


def test_each_answer_follows_its_seed_whatever_is_in_flight() -> None:
    four = threading.Barrier(4)

    def together(server: ChatServer, request: HttpRequest, place: int) -> None:
        four.wait(20)

    with chat_server(after_probes(together)) as server:
        _, many = asked_of(server)
    with chat_server(lambda server, request, place: time.sleep(0.005)) as server:
        _, one = asked_of(server, list(reversed(REQUESTS)), SERVING.model_copy(update={"in_flight": 3}))
    assert server.most_in_flight == 3, "as many as the recipe says"
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


FUNCTION = {"name": "lookup", "arguments": '{"order": "A7"}'}
ONE_CALL = answer("lookup", {"order": "A7"})


@pytest.mark.parametrize(
    ("message", "finish", "text"),
    [
        (
            {"content": None, "tool_calls": [{"id": "a", "type": "function", "function": FUNCTION}]},
            "tool_calls",
            ONE_CALL,
        ),
        ({"tool_calls": [{"id": "a", "function": {**FUNCTION, "arguments": {"order": "A7"}}}]}, "stop", ONE_CALL),
        ({"content": "So.", "tool_calls": [{"id": "a", "function": FUNCTION}]}, "tool_calls", f"So.\n{ONE_CALL}"),
        ({"content": "", "tool_calls": [{"function": {**FUNCTION, "arguments": ""}}]}, "stop", answer("lookup", {})),
        ({"content": '{"name": "lookup", "parameters": {"order": "A7"}}', "tool_calls": []}, "stop", ONE_CALL),
        ({"content": 'lookup{"order": "A7"}', "tool_calls": None}, "stop", ONE_CALL),
        ({"content": "It is sent."}, "stop", "It is sent."),
    ],
)
def test_calls_are_read_however_a_server_sends_them(message: dict[str, Any], finish: str, text: str) -> None:
    choice = {"message": {"role": "assistant", **message}, "finish_reason": finish}
    request = REQUESTS[0].model_copy(update={"messages": [OFFERED, *REQUESTS[0].messages]})
    with chat_server(after_probes(lambda server, asked, place: completion(asked.body, choice=choice))) as server:
        _, answers = asked_of(server, [request])
    assert server.asked[-1].body["tools"] == [LOOKUP]
    assert (answers[request.key].text, answers[request.key].stop) == (text, "stop")


@pytest.mark.parametrize(("field", "content"), [("reasoning_content", None), ("reasoning", None), ("reasoning", "")])
def test_an_answer_cut_within_its_thought_is_empty_and_counted(field: str, content: str | None) -> None:
    """As vLLM with a reasoning parser sends it, to the probes too, whose limit is short."""

    def thinks(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
        thought = drawn(request.body)[0]
        message = {"role": "assistant", "content": content, field: thought, "tool_calls": [], "refusal": None}
        return completion(request.body, choice={"message": message, "finish_reason": "length"})

    with chat_server(thinks) as server:
        _, answers = asked_of(server)
    assert len(server.asked) == PROBE_QUESTIONS + len(REQUESTS), "none is asked again"
    assert {(answer.text, answer.stop) for answer in answers.values()} == {("", "length")}
    assert all(
        answer.tokens > 0 and answer.detail.startswith("cut within its thought: ") for answer in answers.values()
    )


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


def test_decoding_is_what_a_server_says_of_itself() -> None:
    with chat_server(routes=VLLM_ROUTES) as server:
        decoding, _ = asked_of(server, [])
    assert (decoding.engine, decoding.version) == ("endpoint", "0.31.0")
    assert (decoding.device, decoding.dtype, decoding.stop_ids) == ("unknown", "unknown", ())
    assert not decoding.batch_invariant
    with chat_server() as server:
        bare, _ = asked_of(server, [])
    assert (bare.version, len(bare.tokens_digest)) == ("unknown", 64)


def of_system(body: dict[str, Any]) -> bool:
    return body["messages"][0]["role"] == "system"


def refuses_system(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
    return HttpResponse(400) if of_system(request.body) else None


def longer(body: dict[str, Any]) -> HttpResponse:
    count = len(prompt_ids(body["messages"]))
    return completion(body, usage={"prompt_tokens": count + of_system(body), "completion_tokens": 8})


def test_another_tokenizer_has_another_digest() -> None:
    def digest(change: Change) -> str:
        with chat_server(change) as server:
            return asked_of(server, [])[0].tokens_digest

    digests = [digest(lambda server, request, place: None), digest(always(longer)), digest(refuses_system)]
    assert len(set(digests)) == len(digests)


def test_a_route_that_fails_for_now_leaves_no_other_digest() -> None:
    """Or the journal of yesterday's answers would not be found today."""

    def fails(body: dict[str, Any]) -> dict[str, Any]:
        raise ConnectionResetError

    with (
        chat_server(routes={"/version": fails}) as server,
        pytest.raises(RuntimeError, match=r"/version fails .the connection broke.\. See to the server, run again"),
    ):
        asked_of(server, [])


def test_the_key_is_nowhere_but_in_its_header(logged: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    def echo(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        headers = json.dumps({"error": {"message": str(request.headers)}}).encode()
        return HttpResponse(400, headers) if place % 2 else None

    log: list[str] = []
    with chat_server(after_probes(echo)) as server:
        decoding, answers = asked_of(server, log=log.append)
    out = capsys.readouterr()
    assert any("<hidden>" in answer.detail for answer in answers.values())
    shown = [repr(answers), repr(decoding), *log, logged.getvalue(), out.out, out.err]
    assert not [text for text in shown if KEY in text]
