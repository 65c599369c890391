"""The desk's production: what its rows hold, and what they must not hold."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from pipeline.core.storage import ModelRef
from pipeline.demo.desk.conversation import answer as draw_answer
from pipeline.demo.desk.requests import ATTRIBUTES, TOOLS, VALUES, call_text, is_held_out, read_request
from pipeline.demo.desk.traffic import serve
from pipeline.demo.export import TrafficClaim
from pipeline.recipe.sources import DeskUsers
from pipeline.serving.inference import Answer, Messages, Sampling
from tests.answers import answer

pytestmark = pytest.mark.slow

CHAMPION = ModelRef(uri="/models/a", digest="a" * 64)
DAY = "2026-01-05"


def server(model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Answer]]:
    """Answers as the base model's text has it. Calls name the order, or one of which the client knows nothing."""
    rng = random.Random(sampling.seed)
    texts: list[list[Answer]] = []
    for messages in prompts:
        request = read_request(messages)
        assert request is not None
        assert request.shown or messages[0] == {"role": "tools", "content": TOOLS}
        order = request.order if rng.random() < 0.8 else "K00"
        text = call_text(order) if rng.random() < 0.7 else "Hello! I cannot say."
        texts.append([answer(draw_answer(rng, request) if request.shown else text, latency_s=0.1)])
    return texts


def messages_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a row's prompt."""
    asked = json.loads(row["input"])
    return asked["messages"] if isinstance(asked, dict) else asked


def served(users: DeskUsers, size: int = 1500, answers: Any = server) -> tuple[list[dict[str, Any]], dict[str, bool]]:
    """The rows that can be read, once each, and the thumbs by trace."""
    claim = TrafficClaim(champion=CHAMPION.digest, days=(DAY,), traces_per_day=size, seed=7, desk=users)
    lines = serve(claim, DAY, CHAMPION, answers)
    rows: dict[str, dict[str, Any]] = {}
    for line in lines.observations:
        if line.endswith("}"):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            rows.setdefault(row["trace_id"], row)
    return list(rows.values()), {s["trace_id"]: bool(s["value"]) for s in map(json.loads, lines.scores)}


def test_the_client_answers_a_call_with_its_result() -> None:
    """As an application logs it: the definitions, the call as a list, its result under the call's id."""
    rows, _ = served(DeskUsers())
    for row in rows:
        asked, messages = json.loads(row["input"]), messages_of(row)
        assert isinstance(asked, list) or asked["tools"] == json.loads(TOOLS)
        for before, after in pairwise(messages):
            if after["role"] == "tool":
                [call] = before["tool_calls"]
                order = json.loads(call["function"]["arguments"])["order"]
                assert (call["id"], call["function"]["name"]) == (after["tool_call_id"], after["name"])
                assert after["content"].splitlines()[-1].startswith(f"{order} ")


def test_no_field_of_a_trace_holds_utility() -> None:
    """Two answers of different worth that look alike to a log differ in their text alone."""
    rows, _ = served(DeskUsers(), size=300)
    fields = {key for row in rows for key in row} | {f"metadata.{key}" for row in rows for key in row["metadata"]}
    assert fields == {
        "id", "trace_id", "type", "name", "environment", "start_time", "end_time", "created_at", "updated_at",
        "user_id", "session_id", "provided_model_name", "level", "status_message", "input", "output", "metadata",
        "usage_details", "latency",
        "metadata.region", "metadata.finish_reason", "metadata.user_consent", "metadata.confidential",
        "metadata.contexts",
    }  # fmt: skip

    def fixed(text: str) -> Any:
        return lambda model, prompts, sampling: [[answer(text, latency_s=0.1)] for _ in prompts]

    kind, unkind = (
        served(DeskUsers(), 200, fixed(text))[0] for text in ("Hello! I cannot say.", "Go away! You get a voucher.")
    )
    for one, other in zip(kind, unkind, strict=True):
        if len(messages_of(one)) == 2:  # a second question shows the first answer
            assert {**one, "output": None} == {**other, "output": None}


def test_prompts_are_unique_and_show_no_held_out_fact() -> None:
    rows, _ = served(DeskUsers())
    assert len({row["input"] for row in rows}) > 0.9 * len(rows)  # a question without its facts may come again
    for row in rows:
        request = read_request(messages_of(row))
        assert request is not None
        if request.shown:
            assert not is_held_out(*request.fact)
            assert sorted(json.loads(row["metadata"]["contexts"])) == sorted(request.contexts)
        values = {value for each in request.rows for value in each[1:]}
        for attribute in ATTRIBUTES:
            assert not any(is_held_out(request.order, attribute, value) for value in values & set(VALUES[attribute]))
