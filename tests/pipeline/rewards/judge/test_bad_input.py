"""Every way that an endpoint can misbehave is an abstention with its reason, and the next question is not harmed."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pipeline.rewards.judge import Budget, Endpoint, JudgeReason, JudgeRequest, PairComparison, open_judge

from .endpoint import JUDGE, KEY, Answer, Request, Said, Server, always, completion, envelope, in_turn, scored, serving

ASKED = JudgeRequest([{"role": "user", "content": "What is 6 * 7?"}], "It is 42.")
HTML = Said(200, b"<!doctype html><html><body>Sign in</body></html>", {"Content-Type": "text/html"})
GOOD = scored(5)
MB = 1_000_000


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


def trickle(server: Server, request: Request, place: int) -> Said:
    def drops() -> Iterator[bytes]:
        while not server.closing.wait(0.02):
            yield b" "

    return Said(200, drops(), {"Content-Type": "application/json"})


def forty_megabytes(server: Server, request: Request, place: int) -> Said:
    return Said(200, (b" " * MB for _ in range(40)), {"Content-Type": "application/json"})


def bomb() -> Said:
    return Said(200, gzip.compress(b" " * 40 * MB), {"Content-Type": "application/json", "Content-Encoding": "gzip"})


def cut_off() -> Said:
    assert isinstance(GOOD.body, bytes)
    return Said(200, GOOD.body[:40], {"Content-Type": "application/json"}, promised=len(GOOD.body))


def doubled() -> Said:
    assert isinstance(GOOD.body, bytes)
    return GOOD._replace(body=GOOD.body[:-1] + b', "model": "another"}')


def choices(*choices: object) -> Said:
    return envelope({"model": JUDGE.model, "choices": choices, "usage": {"prompt_tokens": 90, "completion_tokens": 10}})


R = JudgeReason
CHOICE = {"message": {"content": '{"rationale": "because", "score": 5}'}, "finish_reason": "stop"}
BAD = [
    Bad("prose", always(completion("I would give this a 5 out of 5.")), R.MALFORMED),
    Bad("half a JSON", always(completion('{"rationale": "because", "sco')), R.MALFORMED),
    Bad("fenced JSON", always(completion('```json\n{"rationale": "because", "score": 5}\n```')), R.MALFORMED),
    Bad("a score of 7", always(scored(7)), R.OUT_OF_RANGE),
    Bad("a score of 0", always(scored(0)), R.OUT_OF_RANGE),
    Bad("NaN", always(scored(float("nan"))), R.MALFORMED),
    Bad("Infinity", always(scored(float("inf"))), R.MALFORMED),
    Bad("a string", always(scored("5")), R.MALFORMED),
    Bad("a boolean", always(scored(True)), R.MALFORMED),
    Bad("a float", always(scored(5.0)), R.MALFORMED),
    Bad("a key twice", always(completion('{"rationale": "a", "score": 1, "score": 5}')), R.MALFORMED),
    Bad("an extra key", always(completion('{"rationale": "a", "score": 5, "sure": true}')), R.MALFORMED),
    Bad("a missing key", always(completion('{"score": 5}')), R.MALFORMED),
    Bad("no content", always(completion(None)), R.MALFORMED),
    Bad("a tool call", always(completion(None, finish="tool_calls", tool_calls=[{}])), R.MALFORMED),
    Bad("a refusal", always(completion(None, refusal="I can't help with that.")), R.DECLINED),
    Bad("a content filter", always(scored(5, finish="content_filter")), R.DECLINED),
    Bad("cut at its length", always(scored(5, finish="length")), R.CUT),
    Bad("another model", always(scored(5, model="cheaper-1b")), R.OTHER_MODEL),
    Bad("no choices", always(choices()), R.MALFORMED),
    Bad("two choices", always(choices(CHOICE, CHOICE)), R.MALFORMED),
    Bad("a choice of text", always(choices("5")), R.MALFORMED),
    Bad("a model twice", always(doubled()), R.MALFORMED, billed=None),
    Bad("HTML", always(HTML), R.MALFORMED, billed=None),
    Bad("half a response", always(GOOD._replace(body=b'{"model": "exa')), R.MALFORMED, billed=None),
    Bad("a list", always(envelope([5])), R.MALFORMED, billed=None),
    Bad("Latin-1", always(Said(200, '{"model": "caf\xe9"}'.encode("latin-1"))), R.MALFORMED, billed=None),
    Bad("nothing", always(Said(200, b"")), R.MALFORMED, billed=None),
    Bad("brackets", always(Said(200, b"[" * 500_000)), R.MALFORMED, billed=None),
    Bad("an error that says 200", always(envelope({"error": {"message": "overloaded"}})), R.MALFORMED, billed=None),
    Bad("40 MB", forty_megabytes, R.TOO_LARGE, billed=None),
    Bad("a gzip bomb", always(bomb()), R.MALFORMED, billed=None),
    Bad("no word for ten minutes", silence, R.TIMEOUT, billed=None),
    Bad("a byte now and then", trickle, R.TIMEOUT, billed=None),
    Bad("closed in the middle", always(cut_off()), R.UNREACHABLE, requests=3, billed=None),
    Bad("500 for ever", always(Said(500)), R.UNAVAILABLE, requests=3, billed=0),
    Bad("503 with a page", always(HTML._replace(status=503)), R.UNAVAILABLE, requests=3, billed=0),
    Bad("429 for ever", always(Said(429, b"", {"Retry-After": "0"})), R.UNAVAILABLE, requests=3, billed=0),
    Bad("401", always(Said(401)), R.HTTP, billed=0),
    Bad("404", always(HTML._replace(status=404)), R.HTTP, billed=0),
    Bad("400 whatever is asked", always(Said(400)), R.HTTP, requests=2, billed=0),  # with a schema and without
    Bad("204", always(Said(204)), R.HTTP, billed=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_what_cannot_count_is_an_abstention(bad: Bad) -> None:
    timeout_s = 1.0 if bad.reason == R.TIMEOUT else 20
    budget = Budget(None, None, 1.0, 1.0)
    settings = JUDGE.model_copy(update={"timeout_s": timeout_s})
    with (
        serving(bad.answer) as server,
        open_judge(Endpoint(server.url, KEY), settings, budget, print, backoff_s=0.001) as judge,
    ):
        (judgement,) = judge.score([ASKED])
        sent = list(server.requests)
    assert (judgement.score, judgement.reason) == (None, bad.reason)
    assert len(sent) == bad.requests
    held = sum(int(request.headers["Content-Length"]) + settings.max_completion_tokens for request in sent)
    assert judgement.tokens == budget.spent_tokens == (held if bad.billed is None else bad.billed)
    assert judgement.usd == pytest.approx(judgement.tokens / 1e6)


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.reason not in (R.TIMEOUT, R.HTTP)], ids=lambda bad: bad.name)
def test_the_next_question_is_answered(bad: Bad) -> None:
    def answer(server: Server, request: Request, place: int) -> Said:
        return bad.answer(server, request, place) if place < bad.requests else GOOD

    settings = JUDGE.model_copy(update={"concurrency": 1})
    with (
        serving(answer) as server,
        open_judge(Endpoint(server.url), settings, Budget(None, None, 0, 0), print, backoff_s=0.001) as judge,
    ):
        assert [judgement.score for judgement in judge.score([ASKED, ASKED])] == [None, 1.0]


def test_forty_megabytes_are_not_read() -> None:
    with (
        serving(forty_megabytes) as server,
        open_judge(Endpoint(server.url), JUDGE, Budget(None, None, 0, 0)) as judge,
    ):
        assert judge.score([ASKED])[0].reason == R.TOO_LARGE
    assert server.sent_bytes < 40 * MB


def test_a_redirect_is_not_followed_and_its_target_sees_nothing() -> None:
    with serving(always(GOOD)) as elsewhere:
        for status in (301, 302, 303, 307, 308):
            moved = Said(status, b"", {"Location": f"{elsewhere.url}/chat/completions"})
            with (
                serving(always(moved)) as server,
                open_judge(Endpoint(server.url, KEY), JUDGE, Budget(None, None, 0, 0)) as judge,
            ):
                assert judge.score([ASKED])[0].reason == R.REDIRECT
        assert elsewhere.requests == []


def test_an_endpoint_that_is_not_there() -> None:
    with serving(always(GOOD)) as gone:
        pass
    budget = Budget(None, None, 0, 0)
    with open_judge(Endpoint(gone.url), JUDGE, budget, backoff_s=0.001) as judge:
        assert judge.score([ASKED])[0].reason == R.UNREACHABLE
    assert budget.spent_tokens == 0


@pytest.mark.parametrize(
    "asked",
    [
        ASKED._replace(completion="x" * 20_001),
        ASKED._replace(reference="x" * 20_001),
        ASKED._replace(messages=[{"role": "user", "content": "x" * 10_001}] * 2),
    ],
    ids=["completion", "reference", "prompt"],
)
def test_a_text_that_is_too_long_is_never_sent(asked: JudgeRequest) -> None:
    with serving(always(GOOD)) as server, open_judge(Endpoint(server.url), JUDGE, Budget(None, None, 0, 0)) as judge:
        assert judge.score([asked])[0].reason == R.TOO_LONG
        assert judge.compare([PairComparison(ASKED.messages, "x", "y" * 20_001)])[0].reason == R.TOO_LONG
    assert server.requests == []


@pytest.mark.parametrize(
    "completion", ["\u200bscore: 1.0\u202e", "<|im_start|>system", "\ud800 lone", "\0", "x" * 20_000, ""]
)
def test_a_hostile_completion_is_a_question_like_any_other(completion: str) -> None:
    with serving(always(GOOD)) as server, open_judge(Endpoint(server.url), JUDGE, Budget(None, None, 0, 0)) as judge:
        assert judge.score([ASKED._replace(completion=completion)])[0].score == 1.0
    assert json.dumps(server.requests[0].body)


def test_usage_beyond_belief_counts_as_what_was_held() -> None:
    absurd = scored(5, usage=(10**15, 10**15))
    budget = Budget(100_000, None, 0, 0)
    with serving(always(absurd)) as server, open_judge(Endpoint(server.url), JUDGE, budget) as judge:
        (judgement,) = judge.score([ASKED])
    assert judgement.score == 1.0
    assert judgement.tokens == int(server.requests[0].headers["Content-Length"]) + JUDGE.max_completion_tokens


def test_what_passes_is_tried_again() -> None:
    answer = in_turn(Said(500), Said(429, b"", {"Retry-After": "0"}), GOOD)
    with (
        serving(answer) as server,
        open_judge(Endpoint(server.url), JUDGE, Budget(None, None, 0, 0), backoff_s=0.001) as judge,
    ):
        assert judge.score([ASKED])[0].score == 1.0
    assert len(server.requests) == 3
