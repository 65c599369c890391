"""A prompt set through the stage `traces`: rows without an answer, one day, by content alone."""

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import Store
from pipeline.recipe.sources import ExportSource, PromptsSource
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read as read_dataset
from pipeline.traces.records import GovernedTraces, Reason
from pipeline.traces.sources.prompts import Prompts
from tests.pipeline.traces.conftest import govern, observation, write

pytestmark = pytest.mark.slow

DAY = date(2026, 1, 5)


def problem(number: int, **changes: Any) -> dict[str, Any]:
    return {"question": f"What is {number} + 1?", "answer": f"So it is.\n#### {number + 1}", **changes}


def section(path: Path, **changes: Any) -> PromptsSource:
    return PromptsSource(**{"uri": str(path), "licence": "MIT", "consent": True, "day": DAY, **changes})


def run(store: Store, path: Path, changes: dict[str, Any] | None = None, **settings: Any) -> GovernedTraces:
    source = section(path, **(changes or {}))
    return govern(store, source, source.uri, **settings)


def rows_of(store: Store, governed: GovernedTraces) -> list[dict[str, Any]]:
    return read_dataset(store, local_lake(store), governed.iteration.dataset).to_pylist()


def test_prompts_are_governed_without_an_answer(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path, "set.jsonl", [problem(1, level=3), problem(2)])
    governed = run(store, path, {"fields": {"metadata": ["level"], "system": "Be brief."}})
    assert (governed.seen, governed.admitted, [day.day for day in governed.days]) == (2, 2, ["2026-01-05"])
    first = min(rows_of(store, governed), key=lambda row: row["reference"])
    assert [message["content"] for message in first["messages"]] == ["Be brief.", "What is 1 + 1?"]
    assert (first["completion"], first["reference"], first["consent"]) == ("", "So it is.\n#### 2", True)
    assert (first["user_id"], first["session_id"], first["model"]) == (None, None, "unanswered")
    assert json.loads(first["metadata"]) == {"level": 3, "expected_answer": "So it is.\n#### 2", "licence": "MIT"}


def test_every_problem_left_out_is_counted(store: Store, tmp_path: Path) -> None:
    secret = "Write to " + "ann@example.org, then say what 5 + 5 is."
    lines = [
        problem(1), "{torn", problem(1), problem(1, answer="#### 7"), problem(2, answer=" "), problem(3, question=""),
        {"answer": "4"}, problem(4, question=secret), problem(5),
    ]  # fmt: skip
    governed = run(store, write(tmp_path, "set.jsonl", lines))
    assert (governed.seen, governed.admitted) == (9, 3)
    assert governed.rejected == {Reason.MALFORMED: 1, Reason.SCHEMA: 3, Reason.DUPLICATE: 2}
    texts = [row["messages"][0]["content"] for row in rows_of(store, governed)]
    assert not any("ann@example.org" in text for text in texts) and any("what 5 + 5 is" in text for text in texts)
    ledger = [json.loads(line) for line in store.path("traces/rejected/2026-01-05.jsonl").read_text().splitlines()]
    assert sorted((row["line"], row["detail"]) for row in ledger) == [
        (2, "JSON is malformed: object keys must be strings (byte 1)"),
        (3, "the problem came before"),
        (4, "the problem came before, with another answer"),
        (5, "without an answer"),
        (6, "without a problem"),
        (7, "without a problem"),
    ]


def test_datasets_of_prompts_depend_on_content_alone(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path, "set.jsonl", [problem(1), problem(2)])
    first = run(store, path)
    os.utime(path, (1, 1))
    again = run(store, path)
    assert again.iteration == first.iteration
    other = run(Store(tmp_path / "other"), write(tmp_path / "elsewhere", "set.jsonl", [problem(1), problem(2)]))
    assert other.iteration.dataset.digest == first.iteration.dataset.digest
    write(tmp_path, "set.jsonl", [problem(1), problem(3)])
    changed = run(store, path)
    assert changed.iteration.dataset.digest != first.iteration.dataset.digest
    assert sorted(row["reference"][-1] for row in rows_of(store, changed)) == ["2", "4"]


@pytest.mark.parametrize("changes", [{"fields": {"system": "Be brief."}}, {"day": date(2026, 1, 6)}, {"licence": "X"}])
def test_another_section_governs_the_same_file_anew(store: Store, tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write(tmp_path, "set.jsonl", [problem(1)])
    first, second = run(store, path), run(store, path, changes)
    assert second.iteration.dataset.digest != first.iteration.dataset.digest
    assert len(rows_of(store, second)) == 1


def test_no_other_source_may_be_silent(store: Store, export: Path) -> None:
    """A row that calls itself unanswered is not: the recipe declares it, and no row."""
    silent = observation(1, output="", provided_model_name="unanswered")
    write(export, "observations_v2/2026-01-05.jsonl", [silent, observation(2)])
    source = ExportSource(kind="langfuse_export", uri=str(export))
    assert govern(store, source, source.uri).rejected == {Reason.EMPTY_OUTPUT: 1}


def test_set_that_is_not_there_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not there"):
        Prompts(str(tmp_path / "none"), section(tmp_path / "none")).parts()
    with pytest.raises(ValueError, match=r"holds no \.jsonl, .*Give the file or folder of a prompt set"):
        Prompts(str(tmp_path), section(tmp_path)).parts()
