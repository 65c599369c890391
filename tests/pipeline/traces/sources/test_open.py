from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pipeline.recipe.traces import (
    DemoSource,
    LangfuseExportSource,
    LangfuseUiSource,
    OpenAiLogsSource,
    OtelSource,
    PostgresTableSource,
)
from pipeline.traces.sources.compression import PartLimits
from pipeline.traces.sources.embedded import EmbeddedProduction
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.langfuse_export import LangfuseExport
from pipeline.traces.sources.langfuse_ui import LangfuseUi
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.openai_logs import OpenAiLogs
from pipeline.traces.sources.otel import Otel
from pipeline.traces.sources.postgres_table import PostgresTable
from pipeline.traces.sources.protocol import Address

from .conftest import observation, read, reasons, write
from .test_openai_logs import REQUEST, RESPONSE
from .test_otel import ASKED, request, span


@pytest.mark.parametrize(
    ("section", "uri", "kind"),
    [
        (DemoSource(), "/data/export", EmbeddedProduction),
        (LangfuseExportSource(uri="s3://b/p"), "s3://b/p", LangfuseExport),
        (LangfuseUiSource(uri="/data"), "/data", LangfuseUi),
        (PostgresTableSource(), "postgresql://u:secret@h/d", PostgresTable),
        (OtelSource(uri="/data"), "/data", Otel),
        (OpenAiLogsSource(uri="/data"), "/data", OpenAiLogs),
    ],
)
def test_the_recipe_chooses_the_reader(section: Any, uri: str, kind: type) -> None:
    source = open_source(Address(section, uri))
    assert isinstance(source, kind)
    assert "secret" not in source.label


GOOD = {
    "langfuse_export": (LangfuseExportSource, "observations_v2/a.jsonl.gz", observation(1)),
    "openai_logs": (OpenAiLogsSource, "a.jsonl.gz", {"request": REQUEST, "response": RESPONSE}),
    "otel": (OtelSource, "a.jsonl.gz", request(span({"gen_ai.input.messages": ASKED}))),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(GOOD))
def test_bad_lines_are_counted_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    section, name, row = GOOD[kind]
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
    any_ratio = PartLimits(max_ratio=1 << 20)
    source = open_source(Address(section(uri=str(tmp_path)), str(tmp_path), any_ratio))
    tracemalloc.start()
    rows = read(source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reasons(rows) == ["too_long:2:None", *(f"malformed:{n}:None" for n in (4, 6, 8, 10))]
    assert [trace.line for trace in rows.traces] == [1, 3, 5, 7, 9, 11]
    assert peak < 64 << 20


@pytest.mark.parametrize("kind", list(GOOD))
def test_a_file_that_disappears_after_its_listing_is_counted(tmp_path: Path, kind: str) -> None:
    section, name, row = GOOD[kind]
    path = write(tmp_path, name, [row])
    source = open_source(Address(section(uri=str(tmp_path)), str(tmp_path)))
    parts = source.parts()
    path.unlink()
    assert reasons(read(source, parts[0])) == ["truncated_file:1:None"]


@pytest.mark.parametrize(
    "uri", ["http://host/a.jsonl", "sftp://host/a", "memory://a", "simplecache::s3://b/p", "zip::/a/b.zip", "S3://b/p"]
)
def test_files_are_read_from_known_kinds_of_places(uri: str) -> None:
    with pytest.raises(
        ValueError, match=r"Files are not read from .*Give traces\.source\.uri a path, or one of file, s3,"
    ):
        Files(uri)
