"""Lines, all of them with their numbers; and files that inflate beyond measure or claim what they do not hold."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.records import Reason
from pipeline.traces.sources import protocol
from pipeline.traces.sources.files import CHUNK
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.lines import MARK, blocks

from .conftest import observation, read

pytestmark = pytest.mark.slow

MEBIBYTE = 1 << 20
LINE = json.dumps(observation(1)).encode() + b"\n"


def observations(folder: Path, name: str = "a.jsonl") -> Path:
    (folder / "observations_v2").mkdir()
    return folder / "observations_v2" / name


def test_a_part_over_its_bytes_is_read_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observations(tmp_path).write_bytes(gzip.compress(LINE * 15_000))
    monkeypatch.setattr(protocol, "MAX_PART", 3 * MEBIBYTE // 2)
    rows = read(LangfuseExport(str(tmp_path)))
    (rejected,) = rows.rejected
    assert (rejected.reason, "1572864 bytes" in rejected.detail) == (Reason.TOO_LARGE, True)
    assert 0 < len(rows.traces) == rejected.line - 1 < 15_000


def test_a_part_over_its_ratio_is_read_no_further(tmp_path: Path) -> None:
    observations(tmp_path).write_bytes(gzip.compress((b" " * 1023 + b"\n") * 80 * 1024))
    rows = read(LangfuseExport(str(tmp_path)))
    assert ([rejection.reason for rejection in rows.rejected], rows.traces) == ([Reason.TOO_LARGE], [])


def test_numbers_of_lines_count_blank_ones(tmp_path: Path) -> None:
    blank = b"\n" * (3 * MEBIBYTE)
    observations(tmp_path).write_bytes(LINE + blank + b"{}\n" + LINE)
    rows = read(LangfuseExport(str(tmp_path)))
    assert [trace.line for trace in rows.traces] == [1, 3 * MEBIBYTE + 3]
    assert [rejection.line for rejection in rows.rejected] == [3 * MEBIBYTE + 2]


def test_a_text_that_many_rows_share_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, text = 200_000, pa.array(["x" * 100_000])
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), text)
    table = pa.table({"id": [str(n) for n in range(count)], "input": shared})
    pq.write_table(table, observations(tmp_path, "a.parquet"))
    monkeypatch.setattr(protocol, "MAX_PART", 20 * MEBIBYTE)
    rows = read(LangfuseExport(str(tmp_path)))
    assert rows.rejected[-1].reason is Reason.TOO_LARGE
    assert rows.rejected[-1].line < 1_000


def test_parquet_that_claims_other_rows_is_damaged(tmp_path: Path) -> None:
    file = observations(tmp_path, "a.parquet")
    pq.write_table(pa.table({"id": ["a" * 40] * 1000}), file, compression="none", use_dictionary=False)
    content = file.read_bytes()
    for at in range(len(content) - 400, len(content) - 8, 7):  # the footer: counts, sizes and offsets
        file.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            rows = read(LangfuseExport(str(tmp_path)))
        except ValueError:  # no Parquet at all
            continue
        assert len(rows.traces) + len(rows.rejected) >= 1


@given(st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"x", b"\n"))), st.integers(1, 30))
def test_lines_keep_their_numbers_across_chunks_and_blocks(chunks: list[bytes], size: int) -> None:
    matches = [line for block in blocks(iter(chunks), size=size) for line in block.lines()]
    chunks[:1] = [chunk.removeprefix(MARK) for chunk in chunks[:1]]
    wanted = enumerate(b"".join(chunks).split(b"\n"), 1)
    assert matches == [(n, line) for n, line in wanted if line and not line.isspace()]


def test_a_line_that_is_too_long_is_counted() -> None:
    endless = [MARK + b"first\n", *[b"x" * CHUNK] * 9, b"y\nlast\n", b"z" * CHUNK, b"z" * CHUNK + b"z"]
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
