from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.sources.compression import CHUNK, Broken
from pipeline.traces.sources.elements import elements
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.lines import blocks
from pipeline.traces.sources.openai_logs import OpenAiLogs

from .conftest import observation, read, reasons, write

TEXT = st.text(st.sampled_from('a"\\[]{},\n é'), max_size=6)
ROW = st.dictionaries(TEXT, TEXT | st.integers() | st.lists(TEXT | st.dictionaries(TEXT, TEXT), max_size=2), max_size=3)


def cut(text: bytes, size: int) -> Iterator[bytes]:
    return (text[at : at + size] for at in range(0, len(text), size))


@given(st.lists(ROW, max_size=5), st.integers(1, 40), st.sampled_from([None, 2]), st.booleans())
def test_elements_are_those_of_the_array(rows: list[Any], size: int, indent: int | None, mark: bool) -> None:
    text = b"\xef\xbb\xbf" * mark + b" \n" + json.dumps(rows, indent=indent).encode() + b"\n"
    matches = [line for block in blocks(cut(text, size), size, array=True) for line in block.lines()]
    assert [(n, json.loads(element)) for n, element in matches] == list(enumerate(rows, 1))


@pytest.mark.slow
def test_an_element_that_is_too_long_is_counted_and_never_held() -> None:
    held = 0

    def endless() -> Iterator[bytes]:
        nonlocal held
        yield b'[{"a": 1}, {"a": ["'
        for _ in range(50):
            yield b"x" * (CHUNK - 1) + b"\\"
            held = max(held, len(reader.gi_frame.f_locals["held"]))
        yield b'"", "y]}"], "b": {}}, {"a": 3}]'

    reader: Any = elements(endless(), 2 * CHUNK)
    assert [result and json.loads(result) for result in reader] == [{"a": 1}, None, {"a": 3}]
    assert held <= 3 * CHUNK + 20
    text = b'[{"a": 1}, {"a": "' + b"x" * 3 * CHUNK + b'"}, {"a": 3}]'
    result = list(blocks(cut(text, CHUNK), max_line=2 * CHUNK, array=True))
    assert [n for block in result for n, _ in block.lines()] == [1, 3]
    assert [(r.line, r.reason) for block in result for r in block.rejected] == [(2, "too_long")]


@pytest.mark.parametrize("name", ["observations_v2/2026-01-05.json", "observations_v2/2026-01-05.json.gz"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_export_that_is_one_array_is_read(tmp_path: Path, name: str, indent: int | None) -> None:
    rows = [observation(n) for n in range(1, 4)]
    write(tmp_path, name, [json.dumps([*rows, 3, "x,y", None], indent=indent)])
    result = read(LangfuseExport(str(tmp_path)))
    assert [(t.line, t.completion) for t in result.traces] == [(1, "2"), (2, "3"), (3, "4")]
    assert reasons(result) == ["schema:4:None"]  # what stands between elements is one row, whatever it is


def test_a_log_that_is_one_array_is_read(tmp_path: Path) -> None:
    row = {"created": 1767607201, "messages": [{"role": "user", "content": "Hi"}], "choices": [{"text": "Yes"}]}
    write(tmp_path, "calls.json", [json.dumps([row, row])])
    assert [t.completion for t in read(OpenAiLogs(str(tmp_path))).traces] == ["Yes", "Yes"]


@pytest.mark.parametrize("zipped", [False, True])
def test_an_array_that_breaks_off_is_counted(tmp_path: Path, zipped: bool) -> None:
    text = json.dumps([observation(n) for n in range(1, 200)]).encode()
    path = write(tmp_path, "observations_v2/2026-01-05.json", [])
    path.write_bytes(gzip.compress(text)[:2000] if zipped else text[: len(text) // 2])
    result = read(LangfuseExport(str(tmp_path)))
    assert 0 < len(result.traces) < 199
    assert reasons(result) == [f"truncated_file:{len(result.traces) + 1}:None"]


def test_rows_in_latin_1_are_counted(tmp_path: Path) -> None:
    rows = [observation(1), observation(2, output="café"), observation(3)]
    for name, text in {"a.jsonl": "\n".join(json.dumps(r, ensure_ascii=False) for r in rows), "b.json": rows}.items():
        written = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        write(tmp_path, f"observations_v2/{name}", []).write_bytes(written.encode("latin-1"))
    result = read(LangfuseExport(str(tmp_path)))
    assert reasons(result) == ["malformed:2:None", "malformed:2:None"]
    assert len(result.traces) == 4


def test_a_file_that_breaks_before_its_first_row_is_counted() -> None:
    def breaks() -> Iterator[bytes]:
        yield b"["
        raise Broken("it broke")

    (block,) = blocks(breaks(), array=True)
    assert (block.texts, [(r.line, r.reason) for r in block.rejected]) == ([], [(1, "truncated_file")])
