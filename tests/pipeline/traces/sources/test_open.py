"""The reader of each kind of source, and what all of them keep."""

import gzip
import json
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.recipe.sources import ExportSource
from pipeline.traces.rows import Rows
from pipeline.traces.sources import protocol
from pipeline.traces.sources.langfuse import Observation, add, row_of
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.open import embedded, open_source
from pipeline.traces.sources.otel import Otel
from pipeline.traces.sources.protocol import Address

from .conftest import observation, read, reasons, write
from .spans import TEXTS, request, span

REAL_TRACES = {
    "autogen-2025-06-06.json": ("gpt-4o", 41, 3, 0.628, "user: Say 'Hello World!'", "Hello World!"),
    "google-gemini-2025-08-01.json": ("gemini-2.5-flash", 6, 2055, 12.032, "What is Langfuse?", "**Langfuse** is"),
    "langgraph-2025-08-22.json": ("gpt-4o-2024-08-06", 108, 51, 1.743, '"Web-Search"', 'The search for "example"'),
    "llamaindex-2025-06-05.json": ("gpt-4o", 13, 81, 2.776, "What is Langfuse?", "Langfuse is a tool"),
    "openai-agents-2025-09-30.json": ("gpt-4.1-2025-04-14", 85, 29, 1.15, "Tokyo is sunny.", "The weather in Tokyo"),
    "openai-assistants-2024-05-29.json": ("gpt-4", 49, 40, None, "`3x + 11 = 14`", "Sure, first subtract 11"),
}
GOOD = {"langfuse_export": ("observations_v2/a.jsonl.gz", observation(1)), "otel": ("a.jsonl.gz", request(span(TEXTS)))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(GOOD))
def test_bad_lines_are_counted_in_bounded_memory(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, row = GOOD[kind]
    good = json.dumps(row).encode() + b"\n"
    bad = [
        b'{"a": "' + b"x" * (200 << 20) + b'"}\n',
        b"\xff\xfe\n",
        b'{"a": ' * 10_000 + b"\n",
        b'{"a": NaN}\n',
        b"\0\n",
    ]
    path = write(tmp_path, name, [])
    with gzip.open(path, "wb", 1) as file:
        for line in bad:
            file.write(good + line)
        file.write(good)
    monkeypatch.setattr(protocol, "MAX_RATIO", 1 << 20)
    source = open_source(Address(ExportSource.model_validate({"kind": kind, "uri": str(tmp_path)}), str(tmp_path)))
    tracemalloc.start()
    rows = read(source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reasons(rows) == ["too_long:2:None", *(f"malformed:{n}:None" for n in (4, 6, 8, 10))]
    assert [trace.line for trace in rows.traces] == [1, 3, 5, 7, 9, 11]
    assert peak < 64 << 20


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (LangfuseExport, r"observations_v2/"),
        (Otel, r"has no JSON lines of OTLP\. Point traces\.source\.uri"),
        (embedded, r"observations_v2/"),
    ],
)
def test_a_missing_source_says_what_to_do(tmp_path: Path, kind: Any, message: str) -> None:
    for uri, why in ((tmp_path / "nowhere", r"nowhere is not there\."), (tmp_path, message)):
        with pytest.raises(ValueError, match=rf"{why}.*\.$"):
            kind(str(uri)).parts()


def test_one_file_is_a_source_too(tmp_path: Path) -> None:
    path = write(tmp_path, "calls.jsonl", [request(span(TEXTS))])
    source = Otel(str(path))
    assert [part.name for part in source.parts()] == ["calls.jsonl"]
    assert len(read(source).traces) == 1


@pytest.mark.shared
def test_six_real_traces_are_read(shared_data: Path) -> None:
    seen = 0
    for path in sorted((shared_data / "langfuse-traces").glob("*.json")):
        rows = Rows()
        for line, given in enumerate(json.loads(path.read_text())["observations"], 1):
            add(rows, line, partial(msgspec.convert, row_of({**given, "latency": None}, Observation), Observation))
        seen += len(rows.traces) + len(rows.rejected)
        last = max(rows.traces, key=lambda t: t.timestamp)
        model, tokens_in, tokens_out, latency_s, asked, answered = REAL_TRACES[path.name]
        assert (last.model, last.input_tokens, last.output_tokens) == (model, tokens_in, tokens_out)
        assert last.latency_s == latency_s
        assert asked in json.dumps(last.messages).replace('\\"', '"')
        assert last.completion.startswith(answered)
        assert {r.reason for r in rows.rejected} <= {"not_generation"}
        assert not [t for t in rows.traces if t.unreadable or "{" in t.completion]
        # Beside an answer, frameworks log a call of a tool: it has no text, and its arguments are not the answer.
        assert [bool(t.tool_calls) for t in rows.traces] == [not t.completion for t in rows.traces]
    assert seen == 23


def test_the_export_and_what_was_served_are_one_source(tmp_path: Path) -> None:
    write(tmp_path, "observations_v2/2026-01-05.jsonl.gz", [observation(1)])
    assert [trace.trace_id for trace in read(embedded(str(tmp_path))).traces] == ["t1"]
    write(tmp_path, "served/arithmetic/2026-01-06-1.jsonl", [request(span(TEXTS))])
    source = embedded(str(tmp_path))
    names = [part.name for part in source.parts()]
    assert names == ["observations_v2/2026-01-05.jsonl.gz", "served/arithmetic/2026-01-06-1.jsonl"]
    rows = read(source)
    assert rows.rejected == []
    assert [trace.trace_id for trace in rows.traces] == ["t1", "5b8efff798038103d269b633813fc60c"]
