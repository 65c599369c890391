"""What a slot serves, by its answers."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import pytest

from pipeline.core.storage import ModelRef
from pipeline.rollout.probe import PROMPTS, Fingerprint, fingerprint_of_files, fingerprint_over_http, identified
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Answer, Messages, Sampling
from tests.pipeline.serving.chat_server import ChatServer, HttpRequest, HttpResponse, as_json, chat_server, completion

Stop = Literal["stop", "length", "error", "refused"]
CHAMPION = tuple(f"answer {n}" for n in range(8))
CANDIDATE = tuple(f"other {n}" for n in range(8))


def changed(answers: Fingerprint, number: int) -> Fingerprint:
    return tuple(f"drift {n}" if n < number else answer for n, answer in enumerate(answers))


BOTH = {"c" * 64: CANDIDATE, "a" * 64: CHAMPION}


def test_a_slot_that_serves_the_champion_is_caught() -> None:
    """Whatever it calls itself, and though 7 of 8 answers are the candidate's too."""
    assert identified(CHAMPION, BOTH, "c" * 64) == "a" * 64
    near = {**BOTH, "c" * 64: changed(CHAMPION, 1)}
    assert identified(CHAMPION, near, "c" * 64) == "a" * 64


def test_models_that_answer_alike_are_told_by_their_names() -> None:
    alike = {"c" * 64: CHAMPION, "a" * 64: CHAMPION}
    assert [identified(changed(CHAMPION, 1), alike, digest * 64) for digest in "ca"] == ["c" * 64, "a" * 64]
    for served, named, why in ((CHAMPION, "", "compare the models"), (CHAMPION, "f" * 64, "compare the models")):
        with pytest.raises(ValueError, match=why):
            identified(served, alike, named)
    with pytest.raises(ValueError, match="7 needed"):
        identified(CANDIDATE, alike, "c" * 64)


def test_a_model_is_identified_by_the_nearest_answers() -> None:
    near = changed(CHAMPION, 1)
    models = {"c" * 64: near, "a" * 64: CHAMPION}
    assert identified(near, models) == "c" * 64
    assert identified(CHAMPION, models) == "a" * 64
    with pytest.raises(ValueError, match="0 are cccccccccccc's, 0 are aaaaaaaaaaaa's, 7 needed"):
        identified(CANDIDATE, models)
    for named in ("", "c" * 64):  # a name decides nothing between answers that differ
        with pytest.raises(ValueError, match="7 of 8 answers are those of cccccccccccc and aaaaaaaaaaaa"):
            identified(("drift", *CHAMPION[1:]), models, named)
    with pytest.raises(ValueError, match="none are known"):
        identified(CHAMPION, {})
    with pytest.raises(ValueError, match="Of 3 answers 0 are cccccccccccc's"):
        identified(CHAMPION[:3], BOTH)


def test_a_models_files_answer_greedily_or_are_refused() -> None:
    asked: list[Sampling] = []
    stops: dict[str, Stop] = {}

    def sample(model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Answer]]:
        asked.append(sampling)
        return [[answer_to(turn["content"])] for (turn,) in prompts]

    def answer_to(prompt: str) -> Answer:
        stop = stops.get(prompt, "length")
        return Answer(key="", text=f"to {prompt}", tokens=1, prompt_tokens=1, stop=stop, latency_s=0.0)

    model = ModelRef(uri="files", digest="a" * 64)
    assert fingerprint_of_files(model, sample) == tuple(f"to {prompt}" for prompt in PROMPTS)
    assert asked == [Sampling(temperature=0.0, max_completion_tokens=16)]
    failures: tuple[Stop, ...] = ("error", "refused")
    for stop in failures:
        stops[PROMPTS[3]] = stop
        with pytest.raises(ValueError, match="Model aaaaaaaaaaaa does not answer 'Name three colours"):
            fingerprint_of_files(model, sample)


def answers_in_turn(*fingerprints: Fingerprint) -> AbstractContextManager[ChatServer]:
    """An address behind which each connection meets the next server. `fingerprints`: what each server answers."""
    servers: dict[Any, Fingerprint] = {}

    def change(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
        with server.lock:
            mine = servers.setdefault(request.connection, fingerprints[len(servers) % len(fingerprints)])
        answer = mine[PROMPTS.index(request.body["messages"][0]["content"])]
        return completion(request.body, choice={"message": {"role": "assistant", "content": answer}})

    return chat_server(change)


def test_a_slot_is_asked_greedily_and_by_nobody_between(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    with answers_in_turn(CANDIDATE) as server:
        endpoint = Endpoint(server.url, "key")
        assert fingerprint_over_http(endpoint, "model@cccccccccccc") == CANDIDATE
    for asked in server.asked:
        assert {name.lower(): value for name, value in asked.headers.items()}["authorization"] == "Bearer key"
        assert (asked.body["temperature"], asked.body["seed"], asked.body["max_tokens"]) == (0, 0, 16)


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (as_json({"error": "no such model"}, 404), ValueError, "answers 404 when it is asked for model@aaaaaaaaaaaa"),
        (None, ValueError, "answers for base when it is asked for model@aaaaaaaaaaaa"),
        (HttpResponse(500), OSError, "answers 500"),
        (HttpResponse(408), OSError, "answers 408"),
        (HttpResponse(429), OSError, "answers 429"),
        (HttpResponse(200, b"<html>"), ValueError, "JSON is malformed"),
        (HttpResponse(200, b"{", promised=9), OSError, "does not answer"),
    ],
)
def test_a_server_that_does_not_answer_is_no_model(
    said: HttpResponse | None, error: type[Exception], words: str
) -> None:
    def answer(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
        return completion(request.body, model="base") if said is None else said

    with chat_server(answer) as server, pytest.raises(error, match=words):
        fingerprint_over_http(Endpoint(server.url), "model@aaaaaaaaaaaa")
