"""A source of the user's own under the traces' stage: the worked example of docs/custom.md."""

import json
import re
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.recipe import Compute
from pipeline.recipe.sources import CustomSource
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from tests.pipeline.traces.conftest import govern, write

PAGE = Path(__file__).parents[3] / "docs" / "custom.md"


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
