"""Fingerprints of the embedded model and of a tuned one: from their files, and over HTTP from who serves them."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import ModelRef, model_ref
from pipeline.rollout.fingerprint import (
    PROMPTS,
    ROUNDS,
    TOKENS,
    Fingerprint,
    Prints,
    answer_over_http,
    fingerprint,
    fingerprint_of_files,
    fingerprint_over_http,
    identified,
    identified_rounds,
    identify_slot,
)
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import AnswerRequest, Sampling
from pipeline.serving.sample import sampler
from tests.pipeline.serving.chat_server import ChatServer, HttpRequest, HttpResponse, as_json, chat_server, completion

BASE = Path(__file__).parents[3] / "pipeline" / "demo" / "model"
CHAMPION = tuple(f"answer {n}" for n in range(8))
CANDIDATE = tuple(f"other {n}" for n in range(8))


def changed(answers: Fingerprint, number: int) -> Fingerprint:
    return tuple(f"drift {n}" if n < number else answer for n, answer in enumerate(answers))


BOTH = [Prints("c" * 64, CANDIDATE), Prints("a" * 64, CHAMPION)]


def test_one_answer_of_eight_may_differ() -> None:
    assert [identified(changed(CANDIDATE, lost), BOTH) for lost in (0, 1)] == ["c" * 64] * 2
    with pytest.raises(ValueError, match="6 are cccccccccccc's, 0 are aaaaaaaaaaaa's, 7 needed"):
        identified(changed(CANDIDATE, 2), BOTH)


def test_a_slot_that_serves_the_champion_is_caught() -> None:
    """Whatever it calls itself, and though 7 of 8 answers are the candidate's too."""
    assert identified(CHAMPION, BOTH, "c" * 64) == "a" * 64
    near = [Prints("c" * 64, changed(CHAMPION, 1)), BOTH[1]]
    assert identified(CHAMPION, near, "c" * 64) == "a" * 64


def test_models_that_answer_alike_are_told_by_their_names() -> None:
    """A person was asked about them before; one who lets them go on must not meet the same question for ever."""
    alike = [Prints("c" * 64, CHAMPION), Prints("a" * 64, CHAMPION)]
    assert [identified(changed(CHAMPION, 1), alike, digest * 64) for digest in "ca"] == ["c" * 64, "a" * 64]
    for served, named, why in ((CHAMPION, "", "compare the models"), (CHAMPION, "f" * 64, "compare the models")):
        with pytest.raises(ValueError, match=why):
            identified(served, alike, named)
    with pytest.raises(ValueError, match="7 needed"):
        identified(CANDIDATE, alike, "c" * 64)
    with answers_in_turn(CHAMPION) as server:
        models = dict(alike)
        assert identify_slot(Endpoint(server.url), "model", "c" * 64, models, rounds=2) == "c" * 64


@pytest.mark.parametrize("served", [(), CANDIDATE[:7], (*CANDIDATE, "one more")])
def test_answers_of_another_number_match_nothing(served: Fingerprint) -> None:
    with pytest.raises(ValueError, match="0 are cccccccccccc's"):
        identified(served, BOTH)


def test_a_model_is_identified_by_the_nearest_answers() -> None:
    near = changed(CHAMPION, 1)
    models = [Prints("c" * 64, near), Prints("a" * 64, CHAMPION)]
    assert identified(near, models) == "c" * 64
    assert identified(CHAMPION, models) == "a" * 64
    with pytest.raises(ValueError, match="0 are cccccccccccc's, 0 are aaaaaaaaaaaa's, 7 needed"):
        identified(CANDIDATE, models)
    for named in ("", "c" * 64):  # a name decides nothing between answers that differ
        with pytest.raises(ValueError, match="7 of 8 answers are those of cccccccccccc and aaaaaaaaaaaa"):
            identified(("drift", *CHAMPION[1:]), models, named)
    with pytest.raises(ValueError, match="none are known"):
        identified(CHAMPION, [])


def answers_in_turn(*fingerprints: Fingerprint) -> AbstractContextManager[ChatServer]:
    """An address behind which each connection meets the next server. `fingerprints`: what each server answers."""
    servers: dict[Any, Fingerprint] = {}

    def change(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
        with server.lock:
            mine = servers.setdefault(request.connection, fingerprints[len(servers) % len(fingerprints)])
        answer = mine[PROMPTS.index(request.body["messages"][0]["content"])]
        return completion(request.body, choice={"message": {"role": "assistant", "content": answer}})

    return chat_server(change)


MODELS = {"a" * 64: CHAMPION, "c" * 64: CANDIDATE}


@pytest.mark.slow
def test_servers_of_different_models_behind_one_address() -> None:
    words = "those of aaaaaaaaaaaa and cccccccccccc: the servers behind this address"
    with answers_in_turn(CANDIDATE, CHAMPION, CANDIDATE) as server, pytest.raises(ValueError, match=words):
        identify_slot(Endpoint(server.url), "model", "c" * 64, MODELS, rounds=ROUNDS)
    with answers_in_turn(CANDIDATE, changed(CANDIDATE, 1)) as server:
        assert identify_slot(Endpoint(server.url), "model", "c" * 64, MODELS, rounds=ROUNDS) == "c" * 64
    assert ROUNDS == 3


def test_one_round_asks_one_server() -> None:
    with answers_in_turn(CANDIDATE, CHAMPION) as server:
        assert identify_slot(Endpoint(server.url), "model", "c" * 64, MODELS) == "c" * 64
        assert len(server.asked) == len(PROMPTS)


def test_a_slot_is_asked_greedily_and_by_nobody_between(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    with answers_in_turn(CANDIDATE) as server:
        endpoint = Endpoint(server.url, "key")
        assert fingerprint_over_http(endpoint, "model@cccccccccccc") == CANDIDATE
        assert answer_over_http(endpoint, "model@cccccccccccc")([{"role": "user", "content": PROMPTS[0]}])
    for asked in server.asked:
        assert {name.lower(): value for name, value in asked.headers.items()}["authorization"] == "Bearer key"
        assert (asked.body["temperature"], asked.body["seed"], asked.body["max_tokens"]) == (0, 0, TOKENS)


def test_answers_that_change_between_rounds_are_refused() -> None:
    models = [Prints(digest, answers) for digest, answers in MODELS.items()]
    one, other = changed(CANDIDATE, 1), (*CANDIDATE[:7], "drift 7")
    with pytest.raises(ValueError, match="for cccccccccccc change between 2 rounds"):
        identified_rounds([one, other], models)
    assert identified_rounds([one, one], models) == "c" * 64


def answering(model: Any) -> AbstractContextManager[ChatServer]:
    """A server whose answers are those of a loaded model, whatever name it is asked for."""

    def change(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
        body = request.body
        asked = [AnswerRequest(key="0", messages=body["messages"], seed=body["seed"])]
        sampling = Sampling(temperature=body["temperature"], max_completion_tokens=body["max_tokens"])
        with server.lock:
            (answer,) = model.answers(asked, sampling)
        choice = {"message": {"role": "assistant", "content": answer.text}, "finish_reason": answer.stop}
        return completion(body, choice=choice)

    return chat_server(change)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelRef]:
    """The base with an adapter of random weights that is not merged, and the files with it merged."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    base: Any = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted: Any = get_peft_model(base, config)
    folder = tmp_path_factory.mktemp("models")
    adapted.save_pretrained(folder / "adapter")
    merged = adapted.merge_and_unload()
    merged.save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(BASE).save_pretrained(folder / "merged")
    return folder / "adapter", model_ref(folder / "merged")


@contextmanager
def loaded(adapter: Path | None) -> Generator[Any]:
    """The embedded model in this process, with an adapter that is not merged."""
    from peft import PeftModel

    from pipeline.serving.__main__ import LoadedModel

    model = LoadedModel(str(BASE), 1)
    if adapter is not None:
        model.__dict__["model"] = PeftModel.from_pretrained(model.model, adapter).eval()
    yield model


@pytest.mark.variant
@pytest.mark.slow
def test_a_slot_is_recognised_by_its_files_answers(tuned: tuple[Path, ModelRef]) -> None:
    adapter, merged = tuned
    base = model_ref(BASE)
    with sampler(lambda line: None) as sample:
        prints = {model.digest: fingerprint_of_files(model, sample) for model in (base, merged)}
    champion, candidate = prints[base.digest], prints[merged.digest]
    assert len(champion) == len(PROMPTS) and champion != candidate
    with loaded(adapter) as model, answering(model) as server:
        served = fingerprint(answer_over_http(Endpoint(server.url), "model@0"))
        both = [Prints(digest, answers) for digest, answers in prints.items()]
        assert identified(served, both) == merged.digest, "an adapter answers as its merged weights do, one at a time"
        assert identify_slot(Endpoint(server.url), "model", merged.digest, prints) == merged.digest
        assert server.asked[-1].body["model"] == f"model@{merged.digest[:12]}"
    with loaded(None) as model, answering(model) as server:
        assert identify_slot(Endpoint(server.url), "model", merged.digest, prints) == base.digest


def test_a_server_that_answers_for_another_name_is_refused() -> None:
    with chat_server(lambda server, request, place: completion(request.body, model="base")) as server:
        ask = answer_over_http(Endpoint(server.url), "model@aaaaaaaaaaaa")
        with pytest.raises(ValueError, match="answers for base, not model@aaaaaaaaaaaa"):
            fingerprint(ask)


@pytest.mark.parametrize(
    ("response", "error", "words"),
    [
        (as_json({"error": "no such model"}, 404), ValueError, "answers 404 to model model@aaaaaaaaaaaa"),
        (HttpResponse(500), OSError, "answers 500"),
        (HttpResponse(408), OSError, "answers 408"),
        (HttpResponse(429), OSError, "answers 429"),
        (HttpResponse(200, b"<html>"), ValueError, "not JSON"),
        (HttpResponse(200, b"{", promised=9), OSError, "does not answer"),
    ],
)
def test_a_server_that_does_not_answer_is_no_model(response: HttpResponse, error: type[Exception], words: str) -> None:
    with chat_server(lambda server, request, place: response) as server:
        ask = answer_over_http(Endpoint(server.url), "model@aaaaaaaaaaaa")
        with pytest.raises(error, match=words):
            fingerprint(ask)


def test_a_slot_that_is_away_raises_no_value_error() -> None:
    with pytest.raises(OSError, match="does not answer"):
        fingerprint(answer_over_http(Endpoint("http://127.0.0.1:9/v1"), "model@aaaaaaaaaaaa"))
