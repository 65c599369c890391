"""The warm-up: every recent prompt is answered by the model at each server, or the slot waits."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from pipeline.rollout.warm_up import PROMPTS, newest, warm_up
from tests.pipeline.rollout.gateway.slot_server import response, slot_server, whole

NAME = "desk@0123456789ab"
ASKED = [json.dumps([{"role": "user", "content": f"question {n}"}]) for n in range(PROMPTS)]


def only(answer, text="question 7"):
    return lambda server, body: answer if body["messages"][0]["content"] == text else None


def test_each_server_is_asked_every_prompt_once() -> None:
    with slot_server(NAME) as one, slot_server(NAME) as other:
        assert warm_up([one.url, other.url], NAME, ASKED) == ""
        for server in (one, other):
            assert sorted(json.dumps(body["messages"]) for body in server.asked) == sorted(ASKED)
            assert {(body["model"], body["max_tokens"]) for body in server.asked} == {(NAME, 16)}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (only(response(b"{}", 500)), "1 of 32 recent prompts got no answer at .*: HTTP 500"),
        (only(response(b"{}", 429)), "HTTP 429"),
        (only(b""), "1 of 32 recent prompts got no answer"),
        (only(response(b"{}")), "no list of choices"),
        (lambda server, body: whole("desk@ffffffffffff"), "32 of 32 .*: an answer of desk@ffffffffffff, not desk@0123"),
        (lambda server, body: response(b"{}", 400), "takes none of 32 recent prompts"),
    ],
)
def test_a_slot_that_fails_at_recent_prompts_is_not_warm(answer, says) -> None:
    with slot_server(NAME) as good, slot_server(NAME) as server:
        server.answer = answer
        assert re.search(says, warm_up([good.url, server.url], NAME, ASKED))


def test_a_prompt_that_no_server_would_take_is_no_fault() -> None:
    with slot_server(NAME) as server:
        server.answer = only(response(b"{}", 400))
        assert warm_up([server.url], NAME, ASKED) == ""
        assert warm_up([server.url], NAME, []) == "", "nothing was asked of production yet"


def test_the_newest_prompts_of_those_who_agree_are_asked() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"trace_id": f"t{n}", "observation_id": "o", "timestamp": start + timedelta(hours=n), "consent": n != 90}
        for n in range(100)
    ]
    agreed = {(f"t{n}", "o") for n in range(100) if n != 95}
    chosen = newest(rows, agreed)
    assert len(chosen) == PROMPTS and chosen[0] == ("t99", "o") and chosen[-1] == ("t66", "o")
    assert not {("t90", "o"), ("t95", "o")} & {*chosen}
