"""The benchmark of the traces stage at a size that takes seconds: its counts, not its times."""

from pathlib import Path

import pytest

from benchmarks.traces import run
from benchmarks.traces_data import generate

pytestmark = pytest.mark.slow

ROWS = 4000


def test_a_way_that_counts_wrongly_is_refused(tmp_path: Path) -> None:
    truth = generate(tmp_path, ROWS)
    with pytest.raises(RuntimeError, match=f"floor found {{'admitted': {ROWS - truth.malformed}}}"):
        run("floor", tmp_path, ROWS, truth._replace(malformed=0))
