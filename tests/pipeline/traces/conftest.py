"""Langfuse exports written row by row, and the stage run over them."""

import gzip
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Compute, Samples
from pipeline.recipe.sources import ExportSource, SourceSection
from pipeline.recipe.traces import Traces
from pipeline.traces.lake import LakeConfig
from pipeline.traces.materialize import materialize
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import address_of
from tests.contexts import KEYS, stage_context

NOW = datetime(2026, 1, 12, tzinfo=UTC)
ALONE = Compute(workers=1)
CHAMPION = ModelRef(uri="/models/champion", digest="c" * 64)


def observation(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A row that every gate admits."""
    row = {
        "id": f"o{number}",
        "trace_id": f"t{number}",
        "type": "GENERATION",
        "start_time": f"2026-01-05 10:00:{number % 60:02d}.000000",
        "updated_at": "2026-01-05 11:00:00.000000",
        "user_id": f"u{number}",
        "session_id": "s",
        "provided_model_name": "m/1 a=b%",
        "level": "DEFAULT",
        "input": json.dumps([{"role": "user", "content": f"What is {number} + 1?"}]),
        "output": json.dumps({"role": "assistant", "content": f"{number + 1}"}),
        "metadata": {"user_consent": "true", "expected_answer": str(number + 1)},
        "usage_details": {"input": "7", "output": 3},
        "latency": 0.5,
    }
    return {**row, **changes}


def score(number: int, trace: int, value: float, **changes: Any) -> dict[str, Any]:
    row = {"id": f"s{number}", "trace_id": f"t{trace}", "name": "thumb", "value": value, "data_type": "NUMERIC"}
    return {**row, "source": "API", "updated_at": "2026-01-05 12:00:00.000000", **changes}


def write(root: Path, name: str, rows: Iterable[dict[str, Any] | str]) -> Path:
    """A file of the export; a row given as text is written as it is."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if name.endswith(".gz") else text.encode())
    return path


def govern(
    store: Store,
    source: SourceSection,
    uri: str,
    lake: LakeConfig | None = None,
    now: datetime = NOW,
    compute: Compute = ALONE,
    champion: ModelRef = CHAMPION,
    version: int = 0,
    since: datetime | None = None,
    kept_out: frozenset[str] = frozenset(),
    **settings: Any,
) -> GovernedTraces:
    """One run of the stage; further keywords change the section."""
    samples, traces = Samples() if source.kind == "prompts" else None, Traces(source=source, **settings)
    return materialize(
        stage_context(store, lake, traces=traces, compute=compute, samples=samples),
        address_of(traces, uri),
        Producer(champion, "tiny", version, since, kept_out),
        0,
        now,
    )


Run = Callable[..., GovernedTraces]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "export"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store with space", KEYS)


@pytest.fixture
def run(store: Store, export: Path) -> Run:
    """Materialise the export into the store; keywords change the section."""

    def once(now: datetime = NOW, compute: Compute = ALONE, **settings: Any) -> GovernedTraces:
        source = ExportSource(kind="langfuse_export", uri=str(export))
        return govern(store, source, source.uri, now=now, compute=compute, **settings)

    return once
