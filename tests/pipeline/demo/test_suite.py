"""The embedded suite's file: fixed, and put right where somebody changed it."""

import hashlib
import json
from pathlib import Path

from pipeline.core.storage import Store
from pipeline.demo.suite import ensure_suite, suite_text
from pipeline.recipe.suites import preset_suite


def test_the_suite_of_the_embedded_recipe_is_the_one_it_was() -> None:
    """Its figures in the documents are of these items: another draw is another suite."""
    rows = [json.loads(line) for line in suite_text(preset_suite("arithmetic", items=1000), 11).splitlines()]
    assert len(rows) == 1000
    pinned = [[row[key] for key in ("id", "cluster", "messages", "reference", "slice")] for row in rows]
    digest = hashlib.sha256(json.dumps(pinned).encode()).hexdigest()
    assert digest == "bbc783fc30b93b5a55cd80748a02e882482e8547a6bd64f9358c3465c130467e"


def test_a_draw_is_fixed_and_grows_at_its_end() -> None:
    assert suite_text(preset_suite("arithmetic", items=80), 3).startswith(
        suite_text(preset_suite("arithmetic", items=50), 3)
    )
    assert suite_text(preset_suite("arithmetic", items=50), 3) != suite_text(preset_suite("arithmetic", items=50), 4)


def test_the_file_is_written_once_and_put_right(tmp_path: Path) -> None:
    store, section = Store(tmp_path), preset_suite("arithmetic", items=40)
    path = ensure_suite(store, section, 5)
    assert path.read_text() == suite_text(preset_suite("arithmetic", items=40), 5)
    written = path.stat().st_mtime_ns
    assert ensure_suite(store, section, 5).stat().st_mtime_ns == written
    path.write_text(path.read_text()[:-9])
    assert ensure_suite(store, section, 5).read_text() == suite_text(preset_suite("arithmetic", items=40), 5)
    assert ensure_suite(store, section, 6) != path
