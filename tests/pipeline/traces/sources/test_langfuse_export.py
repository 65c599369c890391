import gzip
import hashlib
import json
import os
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.core.storage import digest_file
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.protocol import SourcePart

from .conftest import all_of, observation, read, reasons, score, write

DAY = "observations_v2/2026-01-05.jsonl"


def source(export: Path) -> LangfuseExport:
    return LangfuseExport(str(export))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_export_is_read(export: Path, suffix: str) -> None:
    path = write(export, DAY + suffix, [observation(1)])
    write(export, "scores/2026-01-05.jsonl", [score(1, 1, 1.0)])
    calls, scores = source(export).parts()
    assert (calls.name, calls.size, calls.holds) == (DAY + suffix, path.stat().st_size, "calls")
    assert (scores.name, scores.holds) == ("scores/2026-01-05.jsonl", "scores")
    digest = hashlib.sha256()
    (trace,) = all_of(source(export).rows(calls, digest)).traces
    assert digest.hexdigest() == digest_file(path)
    assert trace.messages == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (trace.completion, trace.model, trace.line) == ("2", "m/1 a=b%", 1)
    assert (trace.input_tokens, trace.output_tokens, trace.latency_s) == (7, 3, 0.5)
    assert json.loads(trace.metadata) == {"user_consent": "true", "expected_answer": "2"}
    assert (trace.timestamp, trace.updated_at) == (datetime(2026, 1, 5, 10, 0, 1), datetime(2026, 1, 5, 11))
    assert [(s.trace_id, s.value) for s in read(source(export), scores).scores] == [("t1", 1.0)]


def test_the_older_export_has_its_traces_in_rows_of_their_own(export: Path) -> None:
    write(export, "observations/a.jsonl", [observation(1, metadata=None)])
    row = {"id": "t1", "user_id": "u", "session_id": "s", "updated_at": "2026-01-05 11:00:00.000000"}
    write(export, "traces/a.jsonl", [{**row, "metadata": {"user_consent": "true"}}, {**row, "id": None}])
    write(export, "scores/a.jsonl", [score(1, 1, 1.0)])
    assert [p.holds for p in source(export).parts()] == ["calls", "scores", "attributes"]
    rows = read(source(export))
    (value,) = rows.attributes
    assert (value.trace_id, value.user_id, value.session_id) == ("t1", "u", "s")
    assert (json.loads(value.metadata), value.updated_at) == ({"user_consent": "true"}, datetime(2026, 1, 5, 11))
    assert (len(rows.traces), len(rows.scores), reasons(rows)) == (1, 1, ["schema:2:None"])


def test_where_both_layouts_lie_the_newer_one_is_read(export: Path) -> None:
    for folder in ("observations", "observations_v2", "traces"):
        write(export, f"{folder}/a.jsonl", [observation(1)])
    assert [p.name for p in source(export).parts()] == ["observations_v2/a.jsonl"]


@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_a_broken_gzip_keeps_what_was_readable(export: Path, damage: str) -> None:
    path = write(export, DAY + ".gz", [observation(n, input=os.urandom(2000).hex()) for n in range(1, 201)])
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + (b"" if damage == "cut" else b"\xff" * 64 + whole[half + 64 :]))
    digest = hashlib.sha256()
    (part,) = source(export).parts()
    rows = all_of(source(export).rows(part, digest))
    assert 0 < len(rows.traces) < 200
    assert reasons(rows)[-1].startswith("truncated_file:")
    assert damage == "garbled" or len(rows.rejected) == 1
    assert digest.hexdigest() == digest_file(path)


def test_an_upload_that_never_began_is_not_an_empty_day(export: Path) -> None:
    write(export, DAY.replace("05", "06") + ".gz", [])
    assert read(source(export)) == all_of([])
    write(export, DAY + ".gz", []).write_bytes(b"")
    assert reasons(read(source(export))) == ["truncated_file:1:None"]


def test_two_gzip_members_are_one_file(export: Path) -> None:
    path = write(export, DAY + ".gz", [observation(1)])
    path.write_bytes(path.read_bytes() + gzip.compress(json.dumps(observation(2)).encode()))
    assert len(read(source(export)).traces) == 2


def test_zstd_is_read(export: Path) -> None:
    text = "".join(json.dumps(observation(n)) + "\n" for n in range(500)).encode()
    packed = pa.compress(text, codec="zstd", asbytes=True)
    path = write(export, DAY + ".zst", [])
    path.write_bytes(packed)
    assert len(read(source(export)).traces) == 500
    path.write_bytes(packed[: len(packed) // 2])
    assert reasons(read(source(export)))[0].startswith("truncated_file:")


def test_a_format_that_is_not_read_is_named(export: Path) -> None:
    write(export, DAY, [observation(1)])
    write(export, "observations_v2/2026-01-06.tsv", ["id"])
    with pytest.raises(ValueError, match=r"2026-01-06\.tsv, which is none of \.jsonl.*\.csv\. Move the file away"):
        source(export).parts()


def test_files_in_the_making_are_left_alone(export: Path) -> None:
    write(export, DAY, [observation(1)])
    write(export, "observations_v2/.2026-01-06.jsonl.gz.5f3a", ["{"])
    write(export, "observations_v2/_SUCCESS", [])
    assert [part.name for part in source(export).parts()] == [DAY]


def test_file_that_changed_since_its_listing_is_counted(export: Path) -> None:
    for name in ("gone", "grown"):
        write(export, f"observations_v2/{name}.jsonl", [observation(1)])
    write(export, "observations_v2/gone.parquet", ["PAR1"])
    parts = source(export).parts()
    for name in ("gone.jsonl", "gone.parquet"):
        (export / "observations_v2" / name).unlink()
    write(export, "observations_v2/grown.jsonl", [observation(1), observation(2)])
    by_name = {part.name: read(source(export), part) for part in parts}
    details = [rejection.detail for rows in by_name.values() for rejection in rows.rejected]
    assert details == ["the file is gone since it was listed"] * 2 + ["the file changed since it was listed"]
    assert len(by_name["observations_v2/grown.jsonl"].traces) == 2
    assert isinstance(parts[0], SourcePart)
