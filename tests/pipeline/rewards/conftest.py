"""A governed table made from an export, and the stage run over it."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import Store
from pipeline.recipe import Compute, Rewards
from pipeline.recipe.sources import ExportSource
from pipeline.rewards.judge import Endpoint
from pipeline.rewards.label import label_traces
from pipeline.rewards.records import RewardLabels
from tests.contexts import context_of
from tests.pipeline.traces.conftest import govern, observation, write

ALONE = Compute(workers=1)
Label = Callable[..., RewardLabels]
Rows = Iterable[dict[str, Any]]


def call(number: int, answer: str, reference: str | None = None, day: int = 5, **changes: Any) -> dict[str, Any]:
    """A row of the export: what was answered, and what it is held against."""
    metadata = {"user_consent": "true", **({"expected_answer": reference} if reference is not None else {})}
    metadata |= changes.pop("metadata", {})
    when = datetime(2026, 1, day) + timedelta(seconds=number % 86_400)
    return observation(number, start_time=f"{when:%Y-%m-%d %H:%M:%S.%f}", output=answer, metadata=metadata, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "export"


def labeller(store: Store, export: Path) -> Label:
    """Govern the export as it is now and label it; keywords change the recipe's section."""

    def once(
        compute: Compute = ALONE,
        endpoint: Endpoint | None = None,
        lineage: Iterable[str] = (),
        digest: str = "r",
        governed_by: Mapping[str, Any] = {},
        log: Callable[[str], None] = lambda line: None,
        **settings: Any,
    ) -> RewardLabels:
        source = ExportSource(kind="langfuse_export", uri=str(export))
        governed = govern(store, source, source.uri, max_latency_s=1e6, **governed_by)
        iteration = governed.iteration.model_copy(update={"id": f"{governed.iteration.id}{digest}"})
        rewards = Rewards(**settings)
        context = context_of(store, iteration, log=log, rewards=rewards, compute=compute)
        return label_traces(context, endpoint, frozenset(lineage))

    return once


@pytest.fixture
def label(store: Store, export: Path) -> Label:
    return labeller(store, export)


def rows_of(labels: RewardLabels) -> dict[str, dict[str, Any]]:
    """The label table by trace."""
    return {row["trace_id"]: row for row in pq.read_table(labels.dataset.uri).to_pylist()}


def day_file(export: Path, day: int, rows: Rows) -> None:
    write(export, f"observations_v2/2026-01-{day:02d}.jsonl.gz", rows)
