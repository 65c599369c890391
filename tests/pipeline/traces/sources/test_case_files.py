"""What each provider, framework and tool writes (`cases/*.json`), read right, or not at all.

A case of a source has lines of a file and the rows that they are; a case of `messages.json` has a logged value and what
it says. A line that is a text stands in the file as it is. Fields at their default are left out of rows.
"""

import json
import random
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.recipe.traces import Traces
from pipeline.traces.rows import Rows, Trace
from pipeline.traces.sources import otel
from pipeline.traces.sources.chat import Chat, completion, parse, prompt, served, tool_calls, tools
from pipeline.traces.sources.envelopes import is_data
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, SourcePart

from .conftest import read, reasons, write
from .spans import expanded, logs, message, request, span

CASES = Path(__file__).parent / "cases"
FOLDERS = {"calls": "observations_v2/", "scores": "scores/"}


class SourceCase(NamedTuple):
    kind: str
    name: str
    lines: list[Any]
    rows: dict[str, Any]
    holds: str = "calls"


def source_cases(*kinds: str) -> list[SourceCase]:
    files = [path for path in sorted(CASES.glob("*.json")) if path.stem != "messages"]
    every = [SourceCase(path.stem, **case) for path in files for case in json.loads(path.read_text())]
    chosen = [case for case in every if not kinds or case.kind in kinds]
    return [case._replace(lines=expanded(case.lines)) if case.kind == "otel" else case for case in chosen]


def plain(rows: Rows) -> dict[str, Any]:
    """Rows as a case has them, in the order of their lines."""
    lists = {"traces": rows.traces, "rejected": rows.rejected, "scores": rows.scores}
    in_order = {name: sorted(map(_own, of), key=lambda row: row.get("line", 0)) for name, of in lists.items() if of}
    shown = json.loads(msgspec.json.encode(in_order))
    for row in shown.get("traces", []):
        if "metadata" in row:
            row["metadata"] = json.loads(row["metadata"])
    return shown


def _own(row: Any) -> dict[str, Any]:
    """The fields that are not at their default."""
    given = {field.name: (getattr(row, field.name), field) for field in msgspec.structs.fields(row)}
    return {name: value for name, (value, field) in given.items() if value not in (field.default, *_made(field))}


def _made(field: Any) -> list[Any]:
    return [] if field.default_factory is msgspec.NODEFAULT else [field.default_factory()]


def rows_of(folder: Path, kind: str, lines: list[Any], holds: str = "calls") -> Rows:
    prefix = FOLDERS[holds] if kind == "langfuse_export" else ""
    if prefix and holds != "calls":
        write(folder, "observations_v2/a.jsonl", [])
    write(folder, f"{prefix}a.jsonl", lines)
    settings = Traces.model_validate({"source": {"kind": kind, "uri": str(folder)}})
    source = open_source(Address(settings.source, str(folder)))
    part: SourcePart = next(part for part in source.parts() if part.holds == holds)
    return read(source, part)


@pytest.mark.parametrize("case", source_cases(), ids=lambda case: f"{case.kind}: {case.name}")
def test_rows_of_a_source(tmp_path: Path, case: SourceCase) -> None:
    assert plain(rows_of(tmp_path, case.kind, case.lines, case.holds)) == case.rows


def test_each_line_is_one_row_whatever_the_order(tmp_path: Path) -> None:
    kind = "langfuse_export"
    lines = [line for case in source_cases(kind) if case.holds == "calls" for line in case.lines if line]
    rows = rows_of(tmp_path / "given", kind, lines)
    assert sorted(row.line for row in (*rows.traces, *rows.rejected)) == list(range(1, len(lines) + 1))
    order = random.Random(7).sample(range(len(lines)), len(lines))
    shuffled = rows_of(tmp_path / "shuffled", kind, [lines[n] for n in order])
    for row in shuffled.traces:
        row.line = order[row.line - 1] + 1
    assert sorted(shuffled.traces, key=lambda row: row.line) == sorted(rows.traces, key=lambda row: row.line)


def test_records_of_a_call_join_in_any_order(tmp_path: Path) -> None:
    several = [case for case in source_cases("otel") if 1 < len(case.lines) < 4]
    assert len(several) > 5
    for case in several:
        given = (rows_of(tmp_path, "otel", list(lines)).traces for lines in permutations(case.lines))
        first, *others = [sorted(map(_placeless, traces)) for traces in given]
        assert all(each == first for each in others), case.name


def _placeless(trace: Trace) -> bytes:
    """A record without a span has the id of its place."""
    return msgspec.json.encode({**_own(trace), "line": 0, "observation_id": ""})


def test_what_waits_is_bounded_and_every_row_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "HELD", 5)
    texts = [message("gen_ai.user.message", {"content": "Hi"}), message("gen_ai.choice", {"message": {"content": "2"}})]
    lone = [span({}, spanId=f"{n:016x}") for n in range(20)]
    rows = rows_of(tmp_path, "otel", [request(*lone), logs(*texts), request(span({}))])
    assert reasons(rows) == [f"no_content:{n}:2026-01-05" for n in range(1, 21)]
    assert [trace.completion for trace in rows.traces] == ["2"]


class MessageCase(NamedTuple):
    name: str
    value: Any
    chat: dict[str, Any]
    role: str | None = None
    """None: the messages of an output, of which one was served."""
    forms: int = 1
    """How many of FORMS are read alike."""


FORMS = [lambda value: value, json.dumps, lambda value: json.dumps(json.dumps(value)), repr]
"""As structure, as JSON in a string, twice so, and as Python prints it."""
MESSAGES = [MessageCase(**case) for case in json.loads((CASES / "messages.json").read_text())]


@pytest.mark.parametrize(
    ("case", "form"), [pytest.param(case, n, id=f"{case.name} {n}") for case in MESSAGES for n in range(case.forms)]
)
def test_messages_of_a_value(case: MessageCase, form: int) -> None:
    value = FORMS[form](case.value)
    result: Chat = served(value) if case.role is None else parse(value, case.role)
    assert json.loads(msgspec.json.encode(_own(result))) == case.chat


def test_no_refusal_repeats_what_was_said() -> None:
    shown = [case.chat["unreadable"] for case in MESSAGES if "unreadable" in case.chat]
    shown += [row.get("detail", "") for case in source_cases() for row in case.rows.get("rejected", [])]
    assert len(shown) > 50 and not [text for text in shown if "secret" in text or "alice" in text or len(text) > 220]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
USER = {"role": "user", "content": "Hi"}


def test_instructions_repeated_by_the_answer_are_in_the_prompt() -> None:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}]
    answered = parse({"object": "response", "instructions": "Be brief.", "output": output}, "assistant")
    wanted = [{"role": "system", "content": "Be brief."}, USER]
    assert prompt(parse("Hi", "user"), answered) == wanted == prompt(parse(wanted, "user"), answered)


def test_calls_on_the_way_to_an_answer_are_of_its_prompt() -> None:
    way = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "2"}]
    for before in ([], [USER]):
        answered = parse([*before, *way, {"role": "assistant", "content": "Two."}], "assistant")
        assert (completion(answered), tool_calls(answered)) == ("Two.", None)
        asked = prompt(parse([USER], "user"), answered)
        assert [message["role"] for message in asked] == ["user", "assistant", "tool"]


def test_a_tool_that_was_offered_twice_is_written_once() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = parse({"messages": [USER], "tools": [tool, tool]}, "user")
    assert tools(asked) == json.dumps([tool], separators=(",", ":"))


@pytest.mark.parametrize(
    "text",
    ["[" * 500 + "'secret'" + "]" * 500, "{'a': " * 100 + "1" + "}" * 100 + " " * 70_000 + "{"],
    ids=["deep", "long"],
)
def test_a_literal_without_end_is_unreadable_and_never_text(text: str) -> None:
    result = parse(text, "assistant")
    assert result.messages == [] and result.unreadable and "secret" not in result.unreadable


KEYS = ["role", "content", "messages", "type", "text", "parts", "output", "input", "args", "tool_calls", "choices", "x"]
WORDS = ["user", "assistant", "tool", "text", "message", "function_call", "reasoning", "human", "odd"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=3),
    max_leaves=8,
)


def structures(value: Any) -> Iterator[Any]:
    """Every object, and every list that is not empty, of a value."""
    if isinstance(value, (dict, list)) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from structures(inner)


def texts(value: Any) -> str:
    """Every text of a value, and every key, as one."""
    if isinstance(value, dict):
        return "\n".join([*value, *map(texts, value.values())])
    return "\n".join(map(texts, value)) if isinstance(value, list) else value if isinstance(value, str) else ""


@pytest.mark.slow
@settings(max_examples=100)
@given(JSON, st.sampled_from(["user", "assistant"]), st.sampled_from([lambda v: v, json.dumps, repr]))
def test_chat_value_is_messages_or_a_reason(value: Any, role: str, form: Any) -> None:
    result = parse(form(value), role)
    assert not (result.messages and result.unreadable)
    lines = [m["content"] for m in result.messages if m["role"] != "tool"]  # a tool's result may be JSON
    assert all(isinstance(text, str) for message in result.messages for text in message.values())
    if form(value) == json.dumps(value) and lines == [json.dumps(value)] and role == "assistant" and is_data(value):
        return  # a model was asked for JSON: it has no key of a chat
    for structure in structures(value):
        forms = {json.dumps(structure), json.dumps(structure, separators=(",", ":")), repr(structure), str(structure)}
        for written in forms:
            assert written in texts(value) or not any(written in text for text in lines)
