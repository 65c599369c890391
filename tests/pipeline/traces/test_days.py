import itertools
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.storage import Store
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.traces.database import connect
from pipeline.traces.days import DayTask, compare
from pipeline.traces.erased import NOBODY, ErasedUser, add, erased_users, exclusive_lock, shared_lock
from pipeline.traces.govern import GovernTask, govern_part, keys_file, passed_file
from pipeline.traces.records import FileReport, Reason
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address
from tests.contexts import KEYS, mark_of

from .conftest import NOW, observation, write

MIDNIGHT = "2026-01-06 00:00:00.000000"


def outcome(*rows: dict[str, Any] | str, files: int = 1) -> tuple[list[str], dict[Reason, int]]:
    """Ids of the admitted observations of a day, and the reasons of the others."""
    with tempfile.TemporaryDirectory() as folder:
        admitted, counts = governed(Path(folder), *[rows[n::files] for n in range(files)])
    return sorted(admitted["2026-01-05"]), dict(counts["2026-01-05"])


def governed(
    folder: Path, *files: Sequence[dict[str, Any] | str]
) -> tuple[dict[str, list[str]], dict[str, Counter[Reason]]]:
    """Ids of the admitted observations, and the reasons of the others, by day."""
    source = ExportSource(kind="langfuse_export", uri=str(folder))
    for n, rows in enumerate(files):
        write(folder, f"observations_v2/2026-01-0{n + 5}.jsonl", rows)
    settings, address = Traces(source=source), Address(source, str(folder))
    parts = open_source(address).parts()
    staged = folder / "staged"
    staged.mkdir()
    done = [govern_part(GovernTask(address, part, n, staged, settings, NOW, NOBODY)) for n, part in enumerate(parts)]
    for n in range(len(parts)):
        rows = pq.read_table(keys_file(staged, n)).to_pylist()
        assert all(row["user_id"] is row["model"] is None for row in rows if row["reason"])
        with pa.ipc.open_file(str(passed_file(staged, n))) as file:
            passed = file.read_all().to_pylist()
        assert [row["row"] for row in passed] == [row["row"] for row in rows if row["reason"] is None]
        assert all(row["consent"] and "@" not in row["completion"] for row in passed)
    admitted: dict[str, list[str]] = {}
    counts: dict[str, Counter[Reason]] = {}
    for day in {day for each in done for day in each.days}:
        files = {keys_file(staged, e.place): (e.place, parts[e.place].name) for e in done if day in e.days}
        outcome = compare(DayTask(day, files, folder / "days"))
        with connect(folder, outcome.database, read_only=True) as db:
            admitted[day] = [id for (id,) in db.execute("select observation_id from admitted").fetchall()]
        seen = sum((Counter(part) for part in outcome.counts.values()), Counter[str]())
        counts[day] = Counter({reason: seen[reason] for reason in Reason if seen[reason]})
        assert seen["seen"] == seen["admitted"] + counts[day].total() and seen["admitted"] == len(admitted[day])
        ledger = [json.loads(line) for line in outcome.ledger.read_text().splitlines()]
        assert Counter(line["reason"] for line in ledger) == counts[day]
        assert len({(line["file"], line["line"]) for line in ledger}) == len(ledger)
    return admitted, counts


@pytest.mark.slow
def test_the_newest_export_wins_in_whatever_order_they_come() -> None:
    old, new = observation(1), observation(1, updated_at=MIDNIGHT, level="ERROR")
    for rows, files in itertools.product(((old, new), (new, old)), (1, 2)):
        assert outcome(*rows, files=files) == ([], {Reason.SUPERSEDED: 1, Reason.ERROR: 1})


MIDDAY, ODD = "2026-01-05 12:00:00.000000", json.dumps([{"type": "hologram", "beam": "secret"}])
COPY = {"id": "o9", "trace_id": "t9"}


@pytest.mark.parametrize(
    ("first", "second", "kept", "rejected"),
    [
        ({}, {"id": "o9", "updated_at": MIDNIGHT}, ["o9"], {Reason.DUPLICATE: 1}),
        ({}, COPY, ["o1"], {Reason.DUPLICATE: 1}),
        ({}, {**COPY, "start_time": "2026-01-05 10:00:02.000000"}, ["o1", "o9"], {}),
        ({}, {**COPY, "user_id": "u9"}, ["o1", "o9"], {}),
        ({"metadata": {}}, COPY, ["o9"], {Reason.CONSENT: 1}),
        # An earlier call does not stand for a trace because its last one cannot be read.
        ({}, {"id": "o9", "start_time": MIDDAY, "output": ODD}, [], {Reason.UNREADABLE: 1, Reason.INTERMEDIATE: 1}),
    ],
)
def test_duplicate_is_the_same_text_at_the_same_moment(
    first: dict[str, Any], second: dict[str, Any], kept: list[str], rejected: dict[Reason, int]
) -> None:
    assert outcome(observation(1, **first), observation(1, **second)) == (kept, rejected)


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["o1", "o2", None]),
        "trace_id": st.sampled_from(["t1", "t2", 3]),
        "type": st.sampled_from(["GENERATION", "SPAN", ""]),
        "start_time": st.sampled_from(["2026-01-05 23:59:59.999999", MIDNIGHT, "soon", ""]),
        "updated_at": st.sampled_from(["2026-01-05 11:00:00.000000", MIDNIGHT, None, "later"]),
        "level": st.sampled_from(["ERROR", "DEFAULT", None]),
        "input": st.sampled_from([None, "", "Hi", [{"role": "user", "content": [{"type": "image"}]}], 7]),
        "output": st.sampled_from([None, "Yes", "mail a@example.com", {"x": 1}]),
        "metadata": st.sampled_from([None, {}, {"user_consent": 0}, "text", [1]]),
        "usage_details": st.sampled_from([None, {"input": None}, {"input": "x"}, 3]),
        "latency": st.sampled_from([None, "0.5", 500, "x"]),
        "provided_model_name": st.sampled_from([None, "m", "ü/%"]),
    },
)
ROWS = st.one_of(
    st.builds(lambda n, c: observation(n, **c), st.integers(1, 3), CHANGES), st.sampled_from(["{", "[]", " "])
)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.lists(ROWS, max_size=6), min_size=1, max_size=3))
def test_every_row_ends_in_exactly_one_place(files: list[list[Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        admitted, counts = governed(Path(folder), *files)
    total = sum(map(len, admitted.values())) + sum(c.total() for c in counts.values())
    assert total == sum(row != " " for rows in files for row in rows)


def test_a_report_that_does_not_add_up_cannot_be_made_or_read() -> None:
    with pytest.raises(ValidationError, match="materialise the day again"):
        FileReport(name="f", sha256="s", bytes=9, seen=3, admitted=1, rejected={Reason.CONSENT: 1})


def test_the_list_does_not_change_while_somebody_publishes(tmp_path: Path) -> None:
    store, added = Store(tmp_path, KEYS), threading.Event()

    def forget() -> None:
        with exclusive_lock(store):
            add(store, ErasedUser(mark=mark_of("ann"), proof="p"))
        added.set()

    with shared_lock(store) as seen, shared_lock(store) as beside:
        thread = threading.Thread(target=forget)
        thread.start()
        assert not added.wait(0.2)
        assert seen.users == beside.users == erased_users(store).users == ()
    thread.join()
    with shared_lock(store) as seen:
        assert [user.mark for user in seen.users] == [mark_of("ann")]
