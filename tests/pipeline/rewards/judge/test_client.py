"""What is sent, what it may cost, and every way that an endpoint can misbehave: an abstention with its reason."""

import gzip
import io
import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.recipe.rewards import TokenPrice
from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.judge import Endpoint, JudgeReason, JudgeRefused, JudgeRequest, PairComparison, open_judge
from pipeline.serving.client import GIVE_UP_AFTER
from tests.pipeline.serving.chat_server import as_json, trickle

from .endpoint import (
    JUDGE,
    KEY,
    Answer,
    Request,
    Said,
    Server,
    always,
    asked,
    by_number,
    completion,
    in_turn,
    judging,
    scored,
    serving,
)

ALONE = JUDGE.model_copy(update={"concurrency": 1})
ASKED = JudgeRequest([{"role": "user", "content": "What is 6 * 7?"}], "It is 42.")
HTML = Said(200, b"<!doctype html><html><body>Sign in</body></html>", {"Content-Type": "text/html"})
GOOD = scored(5)
MB = 1_000_000
DEAR = TokenPrice(usd_per_million_prompt_tokens=1.0, usd_per_million_completion_tokens=1.0)


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
    with judging(reasoning, config, log=log.append) as (server, judge):
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
    with judging(always(scored(5, model="examiner-7b-2026-01-31")), log=log.append) as (_, judge):
        assert {judgement.reason for judgement in judge.score(asked(3))} == {JudgeReason.OTHER_MODEL}
    (line,) = log
    assert "'examiner-7b-2026-01-31' answered" in line and "name it in rewards.judge.model" in line


def test_what_is_sent() -> None:
    with judging(in_turn(GOOD, Said(400), GOOD), ALONE, key=KEY) as (server, judge):
        assert [judgement.score for judgement in judge.score(asked(3))] == [1.0, None, 1.0]
    assert len(server.requests) == 3
    body = server.requests[-1].body
    form = body["response_format"]["json_schema"]
    assert form["strict"] is True and form["schema"]["additionalProperties"] is False
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    assert (body["temperature"], body["model"]) == (0, JUDGE.model)
    assert body["max_tokens"] == JUDGE.max_completion_tokens


@pytest.mark.slow
def test_an_endpoint_that_is_lost_costs_one_attempt_a_question() -> None:
    with judging(always(Said(503)), ALONE.model_copy(update={"attempts": 4})) as (server, judge):
        judgements = judge.score(asked(GIVE_UP_AFTER + 30))
    assert {judgement.reason for judgement in judgements} == {JudgeReason.UNAVAILABLE}
    assert len(server.requests) == 4 * GIVE_UP_AFTER + 30


@pytest.mark.parametrize("status", [200, 401, 500])
def test_the_key_is_nowhere_but_in_its_header(
    status: int, logged: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    def echo(server: Server, request: Request, place: int) -> Said:
        return Said(status, json.dumps({"error": request.headers}).encode())

    log: list[str] = []
    with judging(echo, log=log.append, key=KEY) as (server, judge):
        judgements = judge.score(asked(2))
        with pytest.raises(JudgeRefused) as refused:
            judge.admit([])
        assert server.requests[0].headers["Authorization"].endswith(KEY)
    endpoint, out = Endpoint(server.url, KEY), capsys.readouterr()
    shown = [repr(endpoint), str(endpoint), f"{endpoint}", repr([endpoint]), *log, logged.getvalue(), out.out, out.err]
    shown += [repr(judgements), str(refused.value), repr(vars(judge)), judge.id]
    assert not [text for text in shown if KEY in text]


@pytest.mark.parametrize(
    ("url", "key"),
    [
        *(("http://host/v1", key) for key in ("sk-secret\n", "sk-s\xe9cret", "sk-secret\0")),
        ("http://me:secret@host/v1", ""),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_refused(url: str, key: str) -> None:
    with pytest.raises(ValueError, match="JUDGE_") as refused, open_judge(Endpoint(url, key), JUDGE):
        pass
    assert "cret" not in str(refused.value)


@dataclass(frozen=True)
class Bad:
    """`requests`: how many the client makes before it gives up. `billed`: tokens that it counts, None: what it held."""

    name: str
    answer: Answer
    reason: JudgeReason
    requests: int = 1
    billed: int | None = 100


def silence(server: Server, request: Request, place: int) -> Said:
    server.closing.wait()
    return GOOD


def forty_megabytes(server: Server, request: Request, place: int) -> Said:
    return Said(200, (b" " * MB for _ in range(40)), {"Content-Type": "application/json"})


def body(of: Said = GOOD) -> bytes:
    assert isinstance(of.body, bytes)
    return of.body


R = JudgeReason
JSON = {"Content-Type": "application/json"}
BAD = [
    Bad("prose", always(completion("I would give this a 5 out of 5.")), R.MALFORMED),
    Bad("a score of 7", always(scored(7)), R.OUT_OF_RANGE),
    Bad("a refusal", always(completion(None, refusal="I can't help with that.")), R.MALFORMED, billed=None),
    Bad("a content filter", always(scored(5, finish="content_filter")), R.MALFORMED, billed=None),
    Bad("cut at its length", always(scored(5, finish="length")), R.CUT),
    Bad("another model", always(scored(5, model="cheaper-1b")), R.OTHER_MODEL),
    Bad("half a response", always(Said(200, b'{"model": "exa')), R.MALFORMED, billed=None),
    Bad("an error that says 200", always(as_json({"error": {"message": "overloaded"}})), R.MALFORMED, billed=None),
    Bad("40 MB", forty_megabytes, R.TOO_LARGE, billed=None),
    Bad(
        "a gzip bomb",
        always(Said(200, gzip.compress(b" " * 40 * MB), {**JSON, "Content-Encoding": "gzip"})),
        R.MALFORMED,
        billed=None,
    ),
    Bad("no word for ten minutes", silence, R.TIMEOUT, billed=None),
    Bad("a byte now and then", trickle, R.TIMEOUT, billed=None),
    Bad(
        "closed in the middle",
        always(Said(200, body()[:40], JSON, promised=len(body()))),
        R.UNREACHABLE,
        requests=3,
        billed=None,
    ),
    Bad("500 for ever", always(Said(500)), R.UNAVAILABLE, requests=3, billed=0),
    Bad("404", always(HTML._replace(status=404)), R.HTTP, billed=0),
    Bad("400 whatever is asked", always(Said(400)), R.HTTP, billed=0),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_what_cannot_count_is_an_abstention_of_one_question(bad: Bad) -> None:
    def answer(server: Server, request: Request, place: int) -> Said:
        return bad.answer(server, request, place) if place < bad.requests else GOOD

    spending = JudgeSpending()
    config = ALONE.model_copy(update={"timeout_s": 1.0 if bad.reason == R.TIMEOUT else 20, "price": DEAR})
    with judging(answer, config, spending, key=KEY) as (server, judge):
        (judgement,) = judge.score([ASKED])
        sent, spent = list(server.requests), spending.tokens
        if bad.reason not in (R.TIMEOUT, R.HTTP):
            assert judge.score([ASKED])[0].score == 1.0
    assert (judgement.score, judgement.reason) == (None, bad.reason)
    assert len(sent) == bad.requests
    held = sum(int(request.headers["Content-Length"]) + config.max_completion_tokens for request in sent)
    assert judgement.tokens == spent == (held if bad.billed is None else bad.billed)
    assert judgement.usd == pytest.approx(judgement.tokens / 1e6)
    assert server.sent_bytes < 40 * MB, "what is too large is not read"


def test_a_redirect_is_not_followed_and_its_target_sees_nothing() -> None:
    with serving(always(GOOD)) as elsewhere:
        for status in (301, 307):
            moved = Said(status, b"", {"Location": f"{elsewhere.url}/chat/completions"})
            with judging(always(moved), key=KEY) as (_, judge):
                assert judge.score([ASKED])[0].reason == R.HTTP
        assert elsewhere.requests == []
    with open_judge(Endpoint(elsewhere.url), JUDGE, backoff_s=0.001) as judge:
        assert judge.score([ASKED])[0].reason == R.UNREACHABLE, "it is not there any more"


def test_a_text_that_is_too_long_is_never_sent() -> None:
    long, half = "x" * 20_001, [{"role": "user", "content": "x" * 10_001}]
    asked = [ASKED._replace(completion=long), ASKED._replace(reference=long), ASKED._replace(messages=half * 2)]
    with judging(always(GOOD)) as (server, judge):
        assert {judgement.reason for judgement in judge.score(asked)} == {R.TOO_LONG}
        assert judge.compare([PairComparison(ASKED.messages, "x", long)])[0].reason == R.TOO_LONG
    assert server.requests == []


@pytest.mark.parametrize(
    ("usage", "billed"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}, 9),
        (None, None),
        ({"prompt_tokens": 10**12, "completion_tokens": 10**12}, None),
    ],
)
def test_usage_is_believed_where_it_can_be_true(usage: object, billed: int | None) -> None:
    with judging(always(scored(5, usage=usage)), ALONE) as (server, judge):
        (judgement,) = judge.score([ASKED])
    held = int(server.requests[0].headers["Content-Length"]) + ALONE.max_completion_tokens
    assert judgement.tokens == (held if billed is None else billed)


RESPONSES = st.one_of(
    st.tuples(st.integers(1, 1500), st.integers(0, 256)).map(lambda usage: scored(3, usage=usage)),
    st.sampled_from([scored(3, usage=None), completion("prose"), Said(500), Said(400), Said(200, b"<html>")]),
)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(RESPONSES, min_size=1, max_size=12), st.integers(0, 15_000), st.booleans())
def test_the_budget_is_never_passed(answers: list[Said], most: int, in_dollars: bool) -> None:
    limit = {"max_usd": most / 1e6} if in_dollars else {"max_tokens": most}
    config, spending = JUDGE.model_copy(update={"price": DEAR, "max_tokens": None, **limit}), JudgeSpending()
    with judging(lambda server, request, place: answers[place % len(answers)], config, spending) as (_, judge):
        judgements = judge.score(asked(10))
    assert spending.tokens <= most
    assert sum(judgement.tokens for judgement in judgements) == spending.tokens
    assert sum(judgement.usd for judgement in judgements) == pytest.approx(spending.usd)
