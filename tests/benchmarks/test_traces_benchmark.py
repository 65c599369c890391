"""The benchmark of the traces stage at a size that takes seconds: its counts, not its times."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.traces import run
from benchmarks.traces_data import Truth, export_of, generate

pytestmark = pytest.mark.slow

ROWS = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmark")


@pytest.fixture(scope="module")
def truth(folder: Path) -> Truth:
    return generate(folder, ROWS)


def test_the_truth_is_what_a_plain_reading_of_the_export_finds(folder: Path, truth: Truth) -> None:
    files = sorted((export_of(folder, ROWS) / "observations_v2").glob("*.jsonl.gz"))
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    rows, malformed = [], 0
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            malformed += 1
    newest = {row["id"]: row for row in sorted(rows, key=lambda row: row["updated_at"])}
    fates: Counter[str] = Counter()
    contents: set[tuple[str, ...]] = set()
    for row in newest.values():
        content = (row["user_id"], row["start_time"], row["input"], str(row["output"]))
        value = row["metadata"]
        fate = (
            "consent" if value.get("user_consent") != "true"
            else "region" if value["region"] == "eu"
            else "error" if row["level"] == "ERROR"
            else "duplicate" if content in contents
            else "admitted"
        )  # fmt: skip
        contents.add(content)
        fates[fate] += 1
    by_name = {"rows": len(lines), "malformed": malformed, "superseded": len(rows) - len(newest), **fates}
    assert by_name == {name: count for name, count in truth._asdict().items() if name in by_name}
    assert sum(by_name.values()) == 2 * ROWS


def test_a_way_that_counts_wrongly_is_refused(folder: Path, truth: Truth) -> None:
    with pytest.raises(RuntimeError, match=f"floor found {{'admitted': {ROWS - truth.malformed}}}"):
        run("floor", folder, ROWS, truth._replace(malformed=0))
