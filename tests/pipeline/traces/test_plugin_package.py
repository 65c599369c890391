"""The worked example of docs/plugins.md: built, installed with pip, and read by the stage in processes of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "plugins.md"
RUN = """
import datetime, json, sys
from pathlib import Path
import yaml
from pipeline.recipe import load
from pipeline.storage import ModelRef, Store
from pipeline.traces.context import StageContext
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import materialize, read
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import Address

if __name__ == "__main__":
    recipe = load(sys.argv[1])
    store, lines = Store(recipe.data_root), []
    context = StageContext(store, recipe, local_lake(store), lines.append, "")
    source = recipe.traces.source
    governed = materialize(context, Address(source, source.uri),
                           Producer(ModelRef(uri="/models/champion", digest="c" * 64), "tiny"), 0,
                           datetime.datetime(2026, 1, 12, tzinfo=datetime.timezone.utc))
    table = read(store, local_lake(store), governed.iteration.dataset)
    columns = ["user_id", "completion", "latency_s", "feedback_mean", "metadata", "source_file"]
    print(json.dumps({"rows": table.select(columns).to_pylist(), "rejected": governed.rejected, "seen": governed.seen,
                      "digest": source.digest, "dataset": governed.iteration.dataset.digest,
                      "read": [line for line in lines if "traces: read " in line]}))
"""


def block(language: str, nth: int = 0) -> str:
    """A fenced block of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)[nth]


def package(folder: Path, site: Path, version: str = "1.0") -> None:
    """Build the page's package as a wheel, and install it into `site`."""
    folder.mkdir()
    assert 'version = "1.0"' in block("toml")
    (folder / "pyproject.toml").write_text(block("toml").replace('version = "1.0"', f'version = "{version}"'))
    (folder / "acme_traces.py").write_text(block("python"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    without = ["--no-deps", "--no-index"]
    for command in (
        [*pip, "wheel", *without, "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(folder)],
        [*pip, "install", *without, "--upgrade", "--target", str(site), *map(str, [folder / "dist"])],
    ):
        if "install" in command:
            (wheel,) = (folder / "dist").glob("*.whl")
            command[-1] = str(wheel)
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr


@pytest.mark.variant
@pytest.mark.slow
def test_the_pages_package_is_read_by_the_stage(tmp_path: Path) -> None:
    line = json.loads(block("json"))
    logs, site = tmp_path / "logs", tmp_path / "site"
    logs.mkdir()
    mail = {**line, "who": "u3", "said": "Mail a@b.example", "thumb": ""}
    rows = [line, {**line, "who": "u2", "agreed": False}, mail]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (logs / "2026-01-05.jsonl").write_text(text + '{"when": "noon"}\n')
    (logs / "2026-01-06.jsonl").write_text(json.dumps({**line, "when": line["when"] + 86_400, "who": "u4"}) + "\n")
    source = f"{{kind: plugin, name: acme, uri: {logs}, options: {{desk: returns}}}}"
    assert "name: acme" in block("yaml") and "options: {desk: returns}" in block("yaml")
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "own.yaml").write_text(
        f"name: own\ndata_root: {tmp_path / 'data'}\nbase_model: {{name: tiny, uri: {tmp_path}}}\n"
        f"traces: {{source: {source}}}\ncompute: {{workers: 2}}\n"
    )

    def run() -> dict[str, object]:
        path = os.pathsep.join([str(ROOT), str(site)])
        command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "own.yaml")]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    package(tmp_path / "first", site)
    first = run()
    assert (first["digest"], first["seen"]) == ("acme-traces==1.0", 5)
    assert first["rejected"] == {"consent": 1, "schema": 1}
    read = {row["user_id"]: row for row in first["rows"]}  # type: ignore[attr-defined]
    assert sorted(read) == ["u1", "u3", "u4"]
    assert read["u3"]["completion"] == "Mail [EMAIL]" and read["u3"]["feedback_mean"] is None
    assert (read["u1"]["feedback_mean"], read["u1"]["latency_s"]) == (1.0, 0.8)
    assert json.loads(read["u1"]["metadata"])["desk"] == "returns"
    assert (len(first["read"]), run()["read"]) == (2, [])  # type: ignore[arg-type]

    package(tmp_path / "second", site, "1.1")
    newer = run()
    assert newer["digest"] == "acme-traces==1.1" and len(newer["read"]) == 2  # type: ignore[arg-type]
    assert newer["rows"] == first["rows"] and newer["dataset"] != first["dataset"]
