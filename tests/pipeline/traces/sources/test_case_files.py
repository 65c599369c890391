"""What each provider, framework and tool writes (`cases/*.json`), read right, or not at all.

A case of a source has lines of a file and the rows that they are; a case of `messages.json` has a logged value and what
it says. A line that is a text stands in the file as it is. Fields at their default are left out of rows.
"""

import json
import random
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from pipeline.recipe.traces import Traces
from pipeline.traces.rows import Rows, Trace
from pipeline.traces.sources import otel
from pipeline.traces.sources.chat import Chat, parse, served
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, SourcePart

from .conftest import read, reasons, write
from .spans import expanded, logs, message, request, span

CASES = Path(__file__).parent / "cases"
FOLDERS = {"calls": "observations_v2/", "scores": "scores/", "attributes": "traces/"}


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
    lists = {"traces": rows.traces, "rejected": rows.rejected, "scores": rows.scores, "attributes": rows.attributes}
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
        write(folder, "observations/a.jsonl", [])
    write(folder, f"{prefix}a.json" if kind == "langfuse_ui" else f"{prefix}a.jsonl", lines)
    settings = Traces.model_validate({"source": {"kind": kind, "uri": str(folder)}})
    source = open_source(Address(settings.source, str(folder)))
    part: SourcePart = next(part for part in source.parts() if part.holds == holds)
    return read(source, part)


@pytest.mark.parametrize("case", source_cases(), ids=lambda case: f"{case.kind}: {case.name}")
def test_rows_of_a_source(tmp_path: Path, case: SourceCase) -> None:
    assert plain(rows_of(tmp_path, case.kind, case.lines, case.holds)) == case.rows


@pytest.mark.parametrize("kind", ["langfuse_export", "openai_logs"])
def test_each_line_is_one_row_whatever_the_order(tmp_path: Path, kind: str) -> None:
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
    ("case", "form"),
    [pytest.param(case, n, id=f"{case.name} {n}") for case in MESSAGES for n in range(case.forms)],
)
def test_messages_of_a_value(case: MessageCase, form: int) -> None:
    value = FORMS[form](case.value)
    result: Chat = served(value) if case.role is None else parse(value, case.role)
    assert json.loads(msgspec.json.encode(_own(result))) == case.chat


def test_no_refusal_repeats_what_was_said() -> None:
    shown = [case.chat["unreadable"] for case in MESSAGES if "unreadable" in case.chat]
    shown += [row.get("detail", "") for case in source_cases() for row in case.rows.get("rejected", [])]
    assert len(shown) > 50 and not [text for text in shown if "secret" in text or "alice" in text or len(text) > 220]
