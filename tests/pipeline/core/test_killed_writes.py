"""Retention killed before each of its writes: done again, it leaves what it always leaves."""

from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.recipe.sources import ExportSource
from tests.contexts import KEYS
from tests.killing import differing
from tests.pipeline.traces import retention_work
from tests.pipeline.traces.conftest import govern, observation, write

pytestmark = pytest.mark.slow


def retention_root(root: Path) -> None:
    store = Store(root, KEYS)
    for n, day in enumerate(retention_work.DAYS, start=1):
        rows = [observation(n, start_time=f"{day} 10:00:00.000000"), observation(9, id=f"x{n}", metadata={})]
        write(store.path("raw"), f"observations_v2/{day}.jsonl.gz", rows)
    source = ExportSource(kind="langfuse_export", uri=str(store.path("raw")))
    govern(store, source, source.uri)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.variant), 5])
def test_retention_killed_at_its_writes_heals(tmp_path: Path, every: int) -> None:
    retention_root(tmp_path / "data")
    kills, wrong = differing(retention_work.__name__, tmp_path / "data", tmp_path, every)
    assert kills > 5 and wrong == []
