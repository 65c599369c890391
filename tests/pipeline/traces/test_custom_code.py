"""A source and an engine of the user's own under the traces' stage: the worked example of docs/custom.md among them."""

import json
import re
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.recipe import Compute
from pipeline.recipe.custom import CustomCode
from pipeline.recipe.traces import CustomSource, ExportSource
from pipeline.traces.engine import open_engine
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from tests.pipeline.traces.conftest import govern, observation, write

PAGE = Path(__file__).parents[3] / "docs" / "custom.md"
ENGINE = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

class Threads:
    def __init__(self, pool):
        self.pool = pool
    def map(self, function, tasks, log):
        yield from self.pool.map(function, tasks)

@contextmanager
def threads(workers, mark):
    with ThreadPoolExecutor(workers) as pool:
        yield Threads(pool)
    Path(mark).touch()
"""


def block(language: str) -> str:
    """A fenced block of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]


@pytest.mark.slow
def test_the_pages_source_is_read_by_the_stage(tmp_path: Path) -> None:
    line, logs, file = json.loads(block("json")), tmp_path / "logs", tmp_path / "acme.py"
    file.write_text(block("python"))
    lines = [
        line,
        {**line, "who": "u2", "agreed": False},
        {**line, "who": "u3", "said": "Mail a@b.example", "thumb": ""},
    ]
    write(logs, "2026-01-05.jsonl", [*lines, '{"when": "noon"}'])
    write(logs, "2026-01-06.jsonl", [{**line, "when": line["when"] + 86_400, "who": "u4"}])
    store = Store(tmp_path / "data")

    def governed(workers: int) -> dict[str, dict[str, object]]:
        source = CustomSource(code=f"{file}:AcmeLogs", uri=str(logs), options={"desk": "returns"})
        stage = govern(store, source, source.uri, compute=Compute(workers=workers))
        assert (stage.seen, stage.rejected) == (5, {"consent": 1, "schema": 1})
        return {row["user_id"]: row for row in read(store, local_lake(store), stage.iteration.dataset).to_pylist()}

    rows = governed(2)
    assert sorted(rows) == ["u1", "u3", "u4"]
    assert rows["u3"]["completion"] == "Mail [EMAIL]" and rows["u3"]["feedback_mean"] is None
    assert (rows["u1"]["feedback_mean"], rows["u1"]["latency_s"]) == (1.0, 0.8)
    assert json.loads(str(rows["u1"]["metadata"]))["desk"] == "returns"
    file.write_text(block("python").replace('"desk": self._desk', '"desk": self._desk + "!"'))
    assert json.loads(str(governed(1)["u1"]["metadata"]))["desk"] == "returns!", "changed code reads every part again"


@pytest.mark.slow
def test_a_stage_runs_on_an_engine_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENGINE)
    (tmp_path / "lossy.py").write_text(ENGINE.replace("tasks)\n", "tasks[1:])\n", 1))
    write(tmp_path / "export", "observations_v2/2026-01-05.jsonl", [observation(n) for n in range(3)])
    source, mark = ExportSource(kind="langfuse_export", uri=str(tmp_path / "export")), tmp_path / "ended"
    lossy, mine = (
        Compute(engine=CustomCode(code=f"{tmp_path}/{name}.py:threads", options={"mark": str(mark)}), workers=2)
        for name in ("lossy", "mine")
    )
    with pytest.raises(ValueError, match="shorter"):
        govern(Store(tmp_path / "lost"), source, source.uri, compute=lossy)
    governed = govern(Store(tmp_path / "data"), source, source.uri, compute=mine)
    usual = govern(Store(tmp_path / "other"), source, source.uri)
    assert governed.admitted == 3 and governed.iteration.dataset.digest == usual.iteration.dataset.digest
    assert mark.exists(), "its block is left"
    with open_engine(mine) as opened, pytest.raises(ZeroDivisionError):
        list(opened.map((1).__truediv__, [1, 0], print))
