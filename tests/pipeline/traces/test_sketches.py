"""Near duplicates over days that are made again: the same rows as from nothing, and no sketch computed twice."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import layout
from pipeline.recipe.traces import LangfuseExportSource, Traces
from pipeline.storage import Store
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import materialize, read
from pipeline.traces.near_duplicates import KEYS, band_keys
from pipeline.traces.scope import Producer
from pipeline.traces.sketches import KeptSketches, folder_name, forget, keep, write_sketches
from pipeline.traces.sources.protocol import Address
from tests.contexts import stage_context

from .conftest import CHAMPION, NOW, govern, observation, write

DAY = "2026-01-05"
Kept = Callable[..., Path]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Keeps the sketches of texts as those of a day, and says where."""

    def kept(texts: list[str], day: str = DAY) -> Path:
        sketched = KeptSketches(tmp_path / "none").sketch([day] * len(texts), pa.array(texts, pa.string()))
        pq.write_table(pa.table({"text": sketched.texts, "bands": sketched.bands}), tmp_path / "rows.parquet")
        write_sketches(tmp_path / "rows.parquet", tmp_path / "new.bin")
        keep(tmp_path / "sketches", day, tmp_path / "new.bin")
        return tmp_path / "sketches"

    return kept


def test_a_kept_sketch_is_the_computed_one(kept: Kept) -> None:
    texts = [f"one two three four five six {n}" for n in range(50)]
    sketches = KeptSketches(kept(texts[:40]))
    asked = [*texts[::-1], texts[0]]
    assert sketches.sketch([DAY] * 51, pa.array(asked)).bands.to_pylist() == band_keys(asked).to_pylist()
    assert sketches.computed == 10


def test_sketches_of_another_day_are_not_looked_at(kept: Kept) -> None:
    sketches = KeptSketches(kept(["a b c"]))
    sketches.sketch(["2026-01-06", DAY], pa.array(["a b c", "a b c"]))
    assert sketches.computed == 1


@pytest.mark.parametrize(
    "content", [b"", b"x" * 7, bytes(8), bytes([1]) + bytes(7), bytes([9]) + bytes(8 * (KEYS + 3) - 1)]
)
def test_a_file_that_is_not_whole_is_as_none(kept: Kept, content: bytes) -> None:
    root = kept(["a b c"])
    (root / folder_name() / f"{DAY}.bin").write_bytes(content)
    sketches = KeptSketches(root)
    assert sketches.sketch([DAY], pa.array(["a b c"])).bands.to_pylist() == band_keys(["a b c"]).to_pylist()
    assert sketches.computed == 1


def test_files_of_another_version_go(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "sketches" / "rensa-0").mkdir(parents=True)
    assert [path.name for path in kept(["a"]).iterdir()] == [folder_name()]


def test_what_is_forgotten_is_no_longer_on_disk(kept: Kept) -> None:
    kept(["a"])
    root = kept(["b"], "2026-01-06")
    forget(root, [DAY])
    assert [path.name for path in root.rglob("*.bin")] == ["2026-01-06.bin"]
    forget(root)
    assert not root.exists()


VOCABULARY = [f"word{n}" for n in range(400)]


def row(number: int, day: int, seed: int, places: int) -> dict[str, Any]:
    """One of a few answers, with some of its words replaced."""
    words = random.Random(seed).choices(VOCABULARY, k=60)
    answer = " ".join([*words[: 60 - places], *(f"new{number}{n}" for n in range(places))])
    output = json.dumps({"role": "assistant", "content": answer})
    return observation(number, start_time=f"2026-01-{day:02d} 10:00:{number % 60:02d}.000000", output=output)


ROWS = st.lists(
    st.tuples(st.integers(5, 6), st.integers(0, 3), st.sampled_from([0, 0, 1, 30])), min_size=2, max_size=10
).map(lambda drawn: [row(n, *each) for n, each in enumerate(drawn)])


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(rows=ROWS, cuts=st.lists(st.integers(1, 9), max_size=2), near=st.sampled_from(["report", "drop"]))
def test_days_made_in_steps_equal_days_made_at_once(
    govern_export: Callable[..., Any], rows: list[dict[str, Any]], cuts: list[int], near: str
) -> None:
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {len(rows)})
    steps = [rows[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert govern_export(steps, near) == govern_export([rows], near)


@pytest.fixture(scope="module")
def govern_export(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What the table, the ledgers and the reports hold after an export has grown step by step."""

    def govern_export(steps: list[list[dict[str, Any]]], near: Any) -> Any:
        folder = tmp_path_factory.mktemp("grown")
        store, source = Store(folder / "store"), LangfuseExportSource(uri=str(folder / "export"))
        rules: dict[str, Any] = {"near_duplicates": near, "near_duplicate_similarity": 0.8, "min_admitted_share": 0.0}
        results = []
        for number, rows in enumerate(steps):
            write(folder / "export", f"observations_v2/{number}.jsonl", rows)
            results.append(govern(store, source, source.uri, **rules))
        table = read(store, local_lake(store), results[-1].iteration.dataset)
        kept_out = [json.loads(line) for path in sorted(store.path(layout.REJECTED).glob("*")) for line in path.open()]
        reasons = sorted((line["trace_id"], line["reason"]) for line in kept_out)
        reports = [(day.day, day.seen, day.admitted, day.rejected, day.near_duplicates) for day in results[-1].days]
        return table.drop_columns(["source_file"]).to_pylist(), reasons, reports

    return govern_export


def test_a_day_that_grows_computes_new_sketches_alone(store: Store, export: Path) -> None:
    lines: list[str] = []
    source = LangfuseExportSource(uri=str(export))
    context = stage_context(store, log=lines.append, traces=Traces(source=source, near_duplicates="report"))
    for name, numbers in (("a", range(6)), ("b", range(6, 8))):
        write(export, f"observations_v2/{name}.jsonl", [row(n, 5, n, 0) for n in numbers])
        materialize(context, Address(source, source.uri), Producer(CHAMPION, "tiny"), 0, NOW)
    counts = re.findall(r"/(\w)\.jsonl: \d+ rows, (\d+) sketched", "\n".join(lines))
    assert counts == [("a", "6"), ("b", "2"), ("a", "0")]
