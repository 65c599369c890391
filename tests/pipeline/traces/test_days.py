from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.recipe import LangfuseExportSource, Traces
from pipeline.traces.days import govern, report
from pipeline.traces.langfuse_export import read_export
from pipeline.traces.records import DayReport, FileReport, Reason

from .conftest import observation, write

SETTINGS = Traces(source=LangfuseExportSource(uri="x"))
MIDNIGHT = "2026-01-06 00:00:00.000000"


def outcome(*rows: dict[str, Any]) -> tuple[list[str], dict[Reason, int]]:
    """Ids of the admitted observations of a day, and the reasons of the others."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "observations_v2/2026-01-05.jsonl", rows)
        (file,) = read_export(folder)
    admitted, rejected = govern(file.traces, {}, SETTINGS)
    return [t.observation_id for t in admitted], dict(Counter(r.reason for r in rejected))


def test_the_newest_export_wins_in_whatever_order_they_come() -> None:
    old, new = observation(1), observation(1, updated_at=MIDNIGHT, level="ERROR")
    for rows in ((old, new), (new, old)):
        assert outcome(*rows) == ([], {Reason.SUPERSEDED: 1, Reason.ERROR: 1})


def test_a_trace_ingested_under_a_second_id_is_a_duplicate() -> None:
    again = observation(1, id="o9", updated_at=MIDNIGHT)
    assert outcome(observation(1), again) == (["o9"], {Reason.DUPLICATE: 1})


def test_the_last_call_stands_for_its_trace() -> None:
    first = observation(1, id="o0", start_time="2026-01-05 09:00:00", output="Let me see.")
    assert outcome(observation(1), first) == (["o1"], {Reason.INTERMEDIATE: 1})


def test_one_user_saying_the_same_at_one_moment_is_a_duplicate_and_at_two_moments_is_not() -> None:
    copy = observation(1, id="o9", trace_id="t9")
    later = {**copy, "start_time": "2026-01-05 10:00:02.000000"}
    other = {**copy, "user_id": "u9"}
    assert outcome(observation(1), copy) == (["o1"], {Reason.DUPLICATE: 1})
    assert outcome(observation(1), later) == (["o1", "o9"], {})
    assert outcome(observation(1), other) == (["o1", "o9"], {})


def test_a_rejected_row_does_not_push_out_its_admitted_copy() -> None:
    copy = observation(1, id="o9", trace_id="t9")
    assert outcome(observation(1, metadata={}), copy) == (["o9"], {Reason.CONSENT: 1})


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


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(ROWS, max_size=6), min_size=1, max_size=3))
def test_every_row_ends_in_exactly_one_place(files: list[list[Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for n, rows in enumerate(files):
            write(Path(folder), f"observations_v2/2026-01-0{n + 5}.jsonl", rows)
        read = list(read_export(folder))
    traces = [t for file in read for t in file.traces]
    rejected = [r for file in read for r in file.rejected]
    seen = admitted = 0
    for day in {t.day for t in traces} | {r.day for r in rejected}:
        kept, refused = govern([t for t in traces if t.day == day], {}, SETTINGS)
        refused += [r for r in rejected if r.day == day]
        places = Counter([(t.file, t.line) for t in kept] + [(r.file, r.line) for r in refused])
        assert set(places.values()) <= {1}
        made = report(day, "d", {f.name: f.sha256 for f in read}, kept, refused)
        seen, admitted = seen + made.seen, admitted + made.admitted
        assert all(t.consent and "@" not in t.completion for t in kept)
    assert seen == sum(row != " " for rows in files for row in rows)
    assert admitted <= len(traces)


def test_a_report_that_does_not_add_up_cannot_be_made_or_read() -> None:
    with pytest.raises(ValidationError, match="materialise the day again"):
        FileReport(name="f", sha256="s", seen=3, admitted=1, rejected={Reason.CONSENT: 1})
    file = FileReport(name="f", sha256="s", seen=2, admitted=1, rejected={Reason.CONSENT: 1})
    with pytest.raises(ValidationError, match="do not add up"):
        DayReport(day="d", digest="x", files=(file,), seen=2, admitted=2, rejected={})
    good = DayReport(day="d", digest="x", files=(file,), seen=2, admitted=1, rejected={Reason.CONSENT: 1})
    assert DayReport.model_validate_json(good.model_dump_json()) == good
