from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.records import Reason
from pipeline.traces.sources.csv_rows import records
from pipeline.traces.sources.langfuse_export import LangfuseExport

from .conftest import observation, read, reasons, score, write


def text_of(rows: list[dict[str, Any]], **form: Any) -> bytes:
    """The rows as a Langfuse export writes them: texts as they are, other values as JSON."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), **form)
    writer.writeheader()
    plain = [{k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items() if v is not None} for row in rows]
    writer.writerows(plain)
    return stream.getvalue().encode()


def place(export: Path, name: str, content: bytes) -> None:
    path = export / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def pieces(content: bytes, size: int) -> Any:
    return (content[n : n + size] for n in range(0, len(content), size))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("form", [{}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}])
def test_csv_gives_the_rows_that_json_gives(export: Path, tmp_path: Path, name: str, form: dict[str, Any]) -> None:
    odd = 'He said "1,\n2\r\n\n3", or: \u2028 \u00e9'
    rows = [observation(n, usage_details={"input": 7}, level=None, tags=["desk"]) for n in (1, 2)]
    rows.append(observation(3, usage_details=None, input=odd, output=odd, level=None, tags=[]))
    write(export, "observations_v2/a.jsonl", rows)
    place(tmp_path / "csv", f"observations_v2/{name}", text_of(rows, **form))
    place(tmp_path / "csv", "scores/a.csv", text_of([score(1, 1, 0.5)]))
    result, wanted = read(LangfuseExport(str(tmp_path / "csv"))), read(LangfuseExport(str(export)))
    for trace in [*result.traces, *wanted.traces]:
        trace.metadata = json.loads(trace.metadata)
    assert (result.traces, result.rejected) == (wanted.traces, [])
    assert [each.value for each in result.scores] == [0.5]


def test_rows_that_do_not_fit_the_header_are_counted(export: Path) -> None:
    good = text_of([observation(1)])
    place(export, "observations_v2/a.csv", good + b"a,b\n" + b'\xff\n"x"y\n' + good.split(b"\n", 1)[1])
    rows = read(LangfuseExport(str(export)))
    assert reasons(rows) == ["malformed:2:None", "malformed:3:None", "malformed:4:None"]
    assert [trace.line for trace in rows.traces] == [1, 5]


def test_a_csv_that_breaks_off_in_a_text_is_counted(export: Path) -> None:
    content = text_of([observation(1), observation(2)], quoting=csv.QUOTE_ALL)
    place(export, "observations_v2/a.csv", content[:-10])
    rows = read(LangfuseExport(str(export)))
    assert (len(rows.traces), reasons(rows)) == (1, ["truncated_file:2:None"])


def test_a_csv_whose_header_is_no_text_is_counted(export: Path) -> None:
    place(
        export,
        "observations_v2/a.csv",
        text_of([observation(1)]).replace(b"name", "gr\u00f6\u00dfe".encode("latin-1"), 1),
    )
    assert reasons(read(LangfuseExport(str(export)))) == ["malformed:1:None"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_row_over_the_limit_is_skipped(size: int) -> None:
    content = b'a,b\n1,2\n"' + b"x\n" * 50 + b'",y\n3,4\n' + b"z" * 60
    batches = list(records(pieces(content, size), max_row=40))
    assert [row for batch in batches for row in batch.records] == [(1, {"a": "1", "b": "2"}), (3, {"a": "3", "b": "4"})]
    assert [each.reason for batch in batches for each in batch.rejected] == [Reason.TOO_LONG] * 2


ROWS = st.lists(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1), min_size=2, max_size=2)
)


@given(ROWS, st.integers(1, 50))
def test_what_was_written_is_read_in_any_pieces(rows: list[list[str]], size: int) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows([["a", "b"], *rows])
    result = [row for batch in records(pieces(stream.getvalue().encode(), size)) for _, row in batch.records]
    assert result == [{"a": first, "b": second} for first, second in rows]
