"""Spans and log records as frameworks wrote them (`captured/`, a file for each framework and version), read right.

Each framework asked one small server the same: a plain question (K92), one with a system prompt (K93), a tool's call
and its result (A7), a streamed answer (B4), a second turn (K94) and a question that the server refuses (Fail). So what
was said is known, whatever a framework makes of it.
"""

import json
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from pipeline.traces.rows import Message, Trace
from pipeline.traces.sources.otel import Otel

from .conftest import read

CAPTURED = Path(__file__).parent / "captured"
ANSWERS = {"K92": "It ships today.", "K93": "Soon.", "B4": "B4 is late.", "Hi": "Hello.", "K94": "On its way."}
LOST = {"a tool's result without its call", "a conversation that the provider keeps"}
"""Of a prompt, what is refused because the framework did not record all of it."""


class Capture(NamedTuple):
    """What a file holds: `calls` of the model, those that `failed`, those whose prompt shows that it is `lost` in part,
    and those that are `wrong` without a sign (docs/traces.md says which)."""

    calls: int
    failed: int = 1
    lost: int = 0
    wrong: int = 0


CAPTURES = {
    "openlit-1.45.0": Capture(calls=8, lost=1),
    "openlit-1.45.0-responses": Capture(calls=7, wrong=2),
    "agent-framework-1.23.0": Capture(calls=11),
    "agent-framework-1.23.0-responses": Capture(calls=11, lost=3),
    "google-adk-2.13.0": Capture(calls=10),
    "google-adk-2.13.0-litellm": Capture(calls=10),
    "crewai-1.15.30-openinference-1.1.21": Capture(calls=10),
    "dspy-3.4.1-openinference-0.1.48": Capture(calls=5),
    "langchain-1.5.2-openinference-0.1.80": Capture(calls=10),
    "litellm-1.110.2": Capture(calls=7),
    "openai-agents-0.24.0-openinference-2.6.0": Capture(calls=8),
    "pydantic-ai-2.68.0": Capture(calls=8),
    "smolagents-1.26.0-openinference-0.1.43": Capture(calls=6),
}


@cache
def rows(name: str) -> tuple[Trace, ...]:
    with TemporaryDirectory() as folder:
        shutil.copy(CAPTURED / f"{name}.jsonl", folder)
        read_rows = read(Otel(folder))
    assert {rejected.reason for rejected in read_rows.rejected} <= {"not_generation"}
    return tuple(read_rows.traces)


def is_right(row: Trace) -> bool:
    """Whether the row has the prompt that was sent and what the server answered, and no more."""
    systems = [message["content"] for message in row.messages if message["role"] == "system"]
    rest = [message for message in row.messages if message["role"] != "system"]
    asked = next(message["content"] for message in reversed(rest) if message["role"] == "user")
    if len(systems) > 1 or ("K93" in asked and not systems[0].startswith("Be brief.")):
        return False
    if "A7" in asked:
        return _is_right_of_tool(row, rest)
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "And K94?")] if "K94" in asked else None
    if turns is not None and [(message["role"], message["content"]) for message in rest] != turns:
        return False
    answer = next(text for key, text in ANSWERS.items() if key in asked)
    return (row.completion, row.tool_calls) == (answer, None) and (turns is not None or len(rest) == 1)


def _is_right_of_tool(row: Trace, rest: list[Message]) -> bool:
    if len(rest) == 1:
        return row.completion == "" and _is_call(row.tool_calls) and _is_defined(row.tools)
    roles = [message["role"] for message in rest]
    if roles != ["user", "assistant", "tool"] or not _is_call(rest[1].get("tool_calls")):
        return False
    called = json.loads(rest[1]["tool_calls"])[0]["id"]
    given = rest[2].get("tool_call_id") == called and json.loads(rest[2]["content"]) == {"item": "lamp"}
    return given and (row.completion, row.tool_calls) == ("A7 holds a lamp.", None)


def _is_call(calls: str | None) -> bool:
    [call] = json.loads(calls or "[]")
    return call["function"]["name"] == "lookup_order" and json.loads(call["function"]["arguments"]) == {"order": "A7"}


def _is_defined(tools: str | None) -> bool:
    functions = [tool["function"] for tool in json.loads(tools or "[]")]
    return [(each["name"], each["parameters"]["required"]) for each in functions] == [("lookup_order", ["order"])]


@pytest.mark.parametrize("name", CAPTURES)
def test_what_a_framework_wrote_is_read_right_or_refused(name: str) -> None:
    wanted = CAPTURES[name]
    failed = [row for row in rows(name) if row.level == "ERROR"]
    lost = [row for row in rows(name) if row.unreadable]
    kept = [row for row in rows(name) if row.level != "ERROR" and not row.unreadable]
    assert (len(rows(name)), len(failed), len(lost)) == (wanted.calls, wanted.failed, wanted.lost)
    assert all(row.completion == "" and row.error for row in failed)
    assert {(row.unreadable or "").removeprefix("input: ") for row in lost} <= LOST
    assert Counter(map(is_right, kept))[False] == wanted.wrong
    assert all((row.input_tokens, row.output_tokens) in ((7, 3), (None, None)) and row.model for row in kept)


def test_every_capture_is_read() -> None:
    assert {path.stem for path in CAPTURED.glob("*.jsonl")} == set(CAPTURES)
