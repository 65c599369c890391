"""Rows, lakes and a second process for the tests of the governed table."""

import subprocess
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.traces.lake import Lake, LakeConfig
from pipeline.traces.lake.files import write_file
from pipeline.traces.rows import SCHEMA

ROOT = Path(__file__).parents[4]
DAY, NEXT_DAY = "2026-01-05", "2026-01-06"


def row(number: int, day: str = DAY, **changes: Any) -> dict[str, Any]:
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    return {
        "trace_id": f"t{number}",
        "observation_id": f"o{number}",
        "timestamp": noon,
        "day": date.fromisoformat(day),
        "model": "m",
        "consent": True,
        "user_id": None,
        "session_id": None,
        "messages": [
            {"role": "user", "content": "Hi", "tool_calls": None, "tool_call_id": None, "name": "n"},
            {"role": "assistant", "content": "", "tool_calls": "[]", "tool_call_id": None, "name": None},
        ],
        "completion": "Yes",
        "tool_calls": None,
        "input_tokens": 7,
        "output_tokens": None,
        "latency_s": 0.5,
        "level": "DEFAULT",
        "error": None,
        "feedback": [{"name": "thumb", "value": 1.0, "source": "API"}],
        "feedback_mean": 1.0,
        "feedback_count": 1,
        "reference": None,
        "metadata": '{"k": ["v", 1]}',
        "source_file": "f",
        "tools": None,
        **changes,
    }


def batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def written(config: LakeConfig, day: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """URIs of a file for each model and consent of the rows."""
    parts = dict.fromkeys((each["model"], each["consent"]) for each in rows)
    batches = [batch([each for each in rows if (each["model"], each["consent"]) == part]) for part in parts]
    return [uri for n, each in enumerate(batches) for uri in write_file(config, day, f"test-{n}", [each])]


def put(lake: Lake, config: LakeConfig, day: str, rows: Sequence[dict[str, Any]], digest: str) -> list[str]:
    """Replace a day by `rows`."""
    files = written(config, day, rows)
    lake.replace_day(day, files, digest)
    return files


def of(*users: str) -> pc.Expression:
    """The rows of these users."""
    return pc.field("user_id").isin(pa.array(users))


def ids(lake: Lake, *days: str, snapshot: str | None = None) -> list[str]:
    return lake.read(days, snapshot or lake.snapshot, ["trace_id"])["trace_id"].to_pylist()


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own that runs `script` with this module's names at hand."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom lakes import *\n{script}"
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def postgres_lake(url: str, folder: Path) -> LakeConfig:
    """A lake in a database of its own."""
    import psycopg

    name = f"lake_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return LakeConfig(catalogue="postgres", uri=f"{url.rpartition('/')[0]}/{name}", warehouse=f"file://{folder}")
