"""Files that inflate beyond measure, claim what they do not hold, or nest without end: rejected, never a hang."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.recipe.traces import ExportSource
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rows
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, PartLimits

from .conftest import observation
from .conftest import read as read_all

pytestmark = pytest.mark.slow

MEBIBYTE = 1 << 20
LINE = json.dumps(observation(1)).encode() + b"\n"


def zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


def read(folder: Path, limits: PartLimits, kind: str = "langfuse_export") -> Rows:
    source = ExportSource.model_validate({"kind": kind, "uri": str(folder)})
    return read_all(open_source(Address(source, str(folder), limits)))


def observations(folder: Path, name: str = "a.jsonl") -> Path:
    (folder / "observations_v2").mkdir()
    return folder / "observations_v2" / name


@pytest.mark.parametrize("packed", [gzip.compress, zstd])
def test_a_part_over_its_bytes_is_read_so_far(tmp_path: Path, packed: Callable[[bytes], bytes]) -> None:
    observations(tmp_path).write_bytes(packed(LINE * 15_000))
    rows = read(tmp_path, PartLimits(max_bytes=3 * MEBIBYTE // 2))
    (rejected,) = rows.rejected
    assert (rejected.reason, "1572864 bytes" in rejected.detail) == (Reason.TOO_LARGE, True)
    assert 0 < len(rows.traces) == rejected.line - 1 < 15_000


@pytest.mark.parametrize("packed", [gzip.compress, zstd])
@pytest.mark.parametrize(("kind", "name"), [("langfuse_export", "a.jsonl"), ("otel", "a.json")])
def test_a_part_over_its_ratio_is_read_no_further(
    tmp_path: Path, packed: Callable[[bytes], bytes], kind: str, name: str
) -> None:
    observations(tmp_path, name).write_bytes(packed((b" " * 1023 + b"\n") * 80 * 1024))
    rows = read(tmp_path, PartLimits(), kind)
    assert [rejection.reason for rejection in rows.rejected][-1] in (Reason.TOO_LARGE, Reason.TOO_LONG)
    assert rows.traces == []


def test_numbers_of_lines_count_blank_ones(tmp_path: Path) -> None:
    blank = b"\n" * (3 * MEBIBYTE)
    observations(tmp_path).write_bytes(LINE + blank + b"{}\n" + LINE)
    rows = read(tmp_path, PartLimits())
    assert [trace.line for trace in rows.traces] == [1, 3 * MEBIBYTE + 3]
    assert [rejection.line for rejection in rows.rejected] == [3 * MEBIBYTE + 2]


def test_a_text_that_many_rows_share_is_bounded(tmp_path: Path) -> None:
    count, text = 200_000, pa.array(["x" * 100_000])
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), text)
    table = pa.table({"id": [str(n) for n in range(count)], "input": shared})
    pq.write_table(table, observations(tmp_path, "a.parquet"))
    rows = read(tmp_path, PartLimits(max_bytes=20 * MEBIBYTE))
    assert rows.rejected[-1].reason is Reason.TOO_LARGE
    assert rows.rejected[-1].line < 1_000


def test_parquet_that_claims_other_rows_is_damaged(tmp_path: Path) -> None:
    file = observations(tmp_path, "a.parquet")
    pq.write_table(pa.table({"id": ["a" * 40] * 1000}), file, compression="none", use_dictionary=False)
    content = file.read_bytes()
    for at in range(len(content) - 400, len(content) - 8, 7):  # the footer: counts, sizes and offsets
        file.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            rows = read(tmp_path, PartLimits())
        except ValueError:  # no Parquet at all
            continue
        assert len(rows.traces) + len(rows.rejected) >= 1
