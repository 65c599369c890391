"""The metrics file of a training: one line for each step, whatever is killed and computed again."""

import math
from pathlib import Path

from pipeline.training.journal import MetricsLog, read_rows


def test_step_that_is_computed_again_keeps_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsLog(path)
    for step in range(3):
        first.add({"step": step, "loss": step / 2})
    before, end = read_rows(path)
    again = MetricsLog(path)
    for step in range(1, 4):
        again.add({"step": step, "loss": 9.0})
    rows = read_rows(path)[0]
    assert rows[:3] == before
    assert [(row.step, row.metrics) for row in rows] == [
        (0, {"loss": 0.0}), (1, {"loss": 0.5}), (2, {"loss": 1.0}), (3, {"loss": 9.0}),
    ]  # fmt: skip
    assert read_rows(path, end)[0] == rows[3:]
    assert [row.at for row in rows] == sorted(row.at for row in rows)


def test_line_that_a_kill_cut_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(2):
        log.add({"step": step, "kl": math.nan})
    path.write_bytes(path.read_bytes()[:-5])
    assert [row.step for row in read_rows(path)[0]] == [0], "the reader takes whole lines alone"
    MetricsLog(path).add({"step": 1, "kl": 0.5})
    (zero, one) = read_rows(path)[0]
    assert math.isnan(zero.metrics["kl"]) and one.metrics == {"kl": 0.5}


def test_rank_without_checkpoints_keeps_nothing() -> None:
    MetricsLog(None).add({"step": 1, "loss": 1.0})
