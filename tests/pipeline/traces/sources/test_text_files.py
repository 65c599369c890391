"""Lines and elements of an array: all of them, with their numbers, in bounded memory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.records import Reason
from pipeline.traces.sources import lines
from pipeline.traces.sources.files import CHUNK
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.lines import blocks

from .conftest import observation, read, reasons, write

TEXT = st.text(st.sampled_from('a"\\[]{},\n é'), max_size=6)
ROW = st.dictionaries(TEXT, TEXT | st.integers() | st.lists(TEXT | st.dictionaries(TEXT, TEXT), max_size=2), max_size=3)


def cut(content: bytes, size: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


@given(st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"x", b"\n"))), st.integers(1, 30))
def test_lines_keep_their_numbers_across_chunks_and_blocks(chunks: list[bytes], size: int) -> None:
    matches = [line for block in blocks(iter(chunks), size=size) for line in block.lines()]
    wanted = enumerate(b"".join(chunks).split(b"\n"), 1)
    assert matches == [(n, line) for n, line in wanted if line and not line.isspace()]


def test_a_line_that_is_too_long_is_counted() -> None:
    endless = [b"first\n", *[b"x" * CHUNK] * 9, b"y\nlast\n", b"z" * CHUNK, b"z" * CHUNK + b"z"]
    result = list(blocks(iter(endless), max_line=2 * CHUNK))
    assert [line for block in result for line in block.lines()] == [(1, b"first"), (3, b"last")]
    refused = [(r.line, r.reason) for block in result for r in block.rejected]
    assert refused == [(2, Reason.TOO_LONG), (4, Reason.TOO_LONG)]


def test_a_line_at_the_limit_is_read() -> None:
    for length, fits in ((CHUNK, True), (CHUNK + 1, False)):
        text = b"x" * length
        result = list(blocks(iter([text[:10], text[10:], b"\n"]), max_line=CHUNK))
        assert [line for block in result for line in block.lines()] == ([(1, text)] if fits else [])
        assert sum(len(block.rejected) for block in result) == (not fits)


@given(st.lists(ROW, max_size=5), st.integers(1, 40), st.sampled_from([None, 2]), st.booleans())
def test_elements_are_those_of_the_array(rows: list[Any], size: int, indent: int | None, mark: bool) -> None:
    text = b"\xef\xbb\xbf" * mark + b" \n" + json.dumps(rows, indent=indent).encode() + b"\n"
    matches = [
        line for block in blocks(iter([text[:9], *cut(text[9:], size)]), "a.json.gz", size) for line in block.lines()
    ]
    assert [(n, json.loads(element)) for n, element in matches] == list(enumerate(rows, 1))


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (json.dumps([observation(1), 3, "x,y", None], indent=2), ["schema:2:None", "schema:3:None", "schema:4:None"]),
        (json.dumps([observation(n) for n in range(1, 99)])[:-99], ["truncated_file:1:None"]),
        (json.dumps(observation(1), indent=2), []),
    ],
    ids=["an array", "an array that breaks off", "an object over many lines"],
)
def test_a_file_of_one_value_is_read(export: Path, text: str, counted: list[str]) -> None:
    write(export, "observations_v2/2026-01-05.json", [text])
    result = read(LangfuseExport(str(export)))
    assert ([t.line for t in result.traces], reasons(result)) == ([] if "truncated" in str(counted) else [1], counted)


def test_a_value_over_the_limit_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WHOLE", 4 * CHUNK)
    (block,) = blocks((b'[{"a": "' if n == 0 else b"x" * CHUNK for n in range(9)), "a.json")
    assert [(block.texts, str(rest.reason)) for rest in block.rejected] == [([], "too_long")]
