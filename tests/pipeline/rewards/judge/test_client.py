import json
import logging

import pytest

from pipeline.rewards.judge import (
    Budget,
    Endpoint,
    JudgeReason,
    JudgeRefused,
    PairComparison,
    open_judge,
)
from pipeline.serving.client import GIVE_UP_AFTER

from .endpoint import (
    JUDGE,
    KEY,
    QUESTION,
    UNLIMITED,
    Request,
    Said,
    Server,
    always,
    asked,
    by_number,
    in_turn,
    parts,
    preferring,
    scored,
    serving,
)


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_without_response_format_is_asked_without_it(status: int) -> None:
    def plain(server: Server, request: Request, place: int) -> Said:
        if "response_format" in request.body:
            return Said(status)
        return preferring("A") if "answer A" in parts(request) else by_number(server, request, place)

    config = JUDGE.model_copy(update={"concurrency": 1})
    log: list[str] = []
    with serving(plain) as server, open_judge(Endpoint(server.url), config, Budget(*UNLIMITED), log.append) as judge:
        assert [judgement.score for judgement in judge.score(asked(4))] == [0.0, 0.25, 0.5, 0.75]
        assert judge.compare([PairComparison(QUESTION, "1", "2")])[0].consistent is False
    assert ["response_format" in request.body for request in server.requests] == [True] + 6 * [False]
    assert any("response_format" in line for line in log)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_fields_that_a_model_refuses_by_name_are_left_out(concurrency: int) -> None:
    """As OpenAI's reasoning models do: one field a refusal, the first that it meets."""

    def reasoning(server: Server, request: Request, place: int) -> Said:
        for field, code in (("max_tokens", "unsupported_parameter"), ("temperature", "unsupported_value")):
            if field in request.body:
                error = {"message": f"Unsupported: '{field}'", "param": field, "code": code}
                return Said(400, json.dumps({"error": error}).encode())
        return by_number(server, request, place)

    config = JUDGE.model_copy(update={"concurrency": concurrency})
    log: list[str] = []
    with (
        serving(reasoning) as server,
        open_judge(Endpoint(server.url), config, Budget(*UNLIMITED), log.append) as judge,
    ):
        assert [judgement.score for judgement in judge.score(asked(4))] == [0.0, 0.25, 0.5, 0.75]
    last = server.requests[-1].body
    assert last["max_completion_tokens"] == config.max_completion_tokens
    assert last.keys() & {"max_tokens", "temperature"} == set() and "response_format" in last
    assert len(server.requests) <= 4 + 2 * concurrency, "each field is refused once, for what was in flight"
    assert [line.partition(";")[0] for line in log] == [
        "judge: the endpoint refuses max_tokens",
        "judge: the endpoint refuses temperature",
    ]


def test_who_answered_for_the_pinned_model_is_named_once() -> None:
    log: list[str] = []
    dated = always(scored(5, model="examiner-7b-2026-01-31"))
    with serving(dated) as server, open_judge(Endpoint(server.url), JUDGE, Budget(*UNLIMITED), log.append) as judge:
        assert {judgement.reason for judgement in judge.score(asked(3))} == {JudgeReason.OTHER_MODEL}
    (line,) = log
    assert "'examiner-7b-2026-01-31' answered" in line and "name it in rewards.judge.model" in line


def test_another_refused_field_is_not_asked_again() -> None:
    body = b'{"error": {"message": "no", "param": "messages"}}'
    with (
        serving(always(Said(400, body))) as server,
        open_judge(Endpoint(server.url), JUDGE, Budget(*UNLIMITED)) as judge,
    ):
        assert judge.score(asked(1))[0].reason == JudgeReason.HTTP
    assert len(server.requests) == 2, "with a schema and without"


def test_a_server_that_takes_a_schema_is_always_given_one() -> None:
    config = JUDGE.model_copy(update={"concurrency": 1})
    answer = in_turn(scored(5), Said(400), scored(5))
    with serving(answer) as server, open_judge(Endpoint(server.url), config, Budget(*UNLIMITED)) as judge:
        assert [judgement.score for judgement in judge.score(asked(3))] == [1.0, None, 1.0]
    assert len(server.requests) == 3
    form = server.requests[-1].body["response_format"]["json_schema"]
    assert form["strict"] is True and form["schema"]["additionalProperties"] is False


def test_what_is_sent() -> None:
    with (
        serving(always(scored(5))) as server,
        open_judge(Endpoint(server.url + "/", KEY), JUDGE, Budget(*UNLIMITED)) as judge,
    ):
        judge.score(asked(1))
    (request,) = server.requests
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.body["temperature"] == 0
    assert request.body["model"] == JUDGE.model
    assert request.body["max_tokens"] == JUDGE.max_completion_tokens


def test_an_endpoint_that_is_lost_costs_one_attempt_a_question() -> None:
    config = JUDGE.model_copy(update={"concurrency": 1, "attempts": 4})
    with (
        serving(always(Said(503))) as server,
        open_judge(Endpoint(server.url), config, Budget(*UNLIMITED), backoff_s=0.0001) as judge,
    ):
        judgements = judge.score(asked(GIVE_UP_AFTER + 30))
    assert {judgement.reason for judgement in judgements} == {JudgeReason.UNAVAILABLE}
    assert len(server.requests) == 4 * GIVE_UP_AFTER + 30


@pytest.mark.parametrize("status", [200, 401, 500])
def test_the_key_is_nowhere_but_in_its_header(
    status: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def echo(server: Server, request: Request, place: int) -> Said:
        return Said(status, json.dumps({"error": request.headers}).encode())

    log: list[str] = []
    endpoint: Endpoint
    with caplog.at_level(logging.DEBUG), serving(echo) as server:
        endpoint = Endpoint(server.url, KEY)
        with open_judge(endpoint, JUDGE, Budget(*UNLIMITED), log.append, backoff_s=0.001) as judge:
            judgements = judge.score(asked(2))
            with pytest.raises(JudgeRefused) as refused:
                judge.admit([])
        assert server.requests[0].headers["Authorization"].endswith(KEY)
    out = capsys.readouterr()
    shown = [repr(endpoint), str(endpoint), f"{endpoint}", repr([endpoint]), *log, caplog.text, out.out, out.err]
    shown += [repr(judgements), str(refused.value), repr(vars(judge)), judge.id]
    assert not [text for text in shown if KEY in text]


@pytest.mark.parametrize("key", ["sk-secret\n", "sk-secret word", "sk-s\xe9cret", "sk-secret\0"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(key: str) -> None:
    with (
        pytest.raises(ValueError, match="JUDGE_API_KEY") as refused,
        open_judge(Endpoint("http://127.0.0.1:1/v1", key), JUDGE, Budget(*UNLIMITED)),
    ):
        pass
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000/v1", "ftp://host/v1", "http://", "http://me:secret@host/v1", "http://host/v1?key=secret"],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="JUDGE_") as refused, open_judge(Endpoint(url), JUDGE, Budget(*UNLIMITED)):
        pass
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("digest", ["", "  "])
def test_a_judge_without_a_digest_is_refused(digest: str) -> None:
    config = JUDGE.model_copy(update={"digest": digest})
    with (
        pytest.raises(JudgeRefused, match="Set it to"),
        open_judge(Endpoint("http://h/v1"), config, Budget(*UNLIMITED)),
    ):
        pass


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(always(scored(1))) as proxy, serving(always(scored(5))) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with open_judge(Endpoint(server.url), JUDGE, Budget(*UNLIMITED)) as judge:
            assert judge.score(asked(1))[0].score == 1.0
        assert proxy.requests == []
