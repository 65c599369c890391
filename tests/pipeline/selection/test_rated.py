"""Which rated rows a reward model may learn from: consent of now, and nothing that an evaluation asks."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.storage import DatasetRef
from pipeline.rewards.records import LABELS
from pipeline.selection.rated import rated_rows
from pipeline.selection.trainable import HeldApart

ITEM = "How many of the seven green bottles that hang on the old garden wall fall down today?"


def row(name: str, text: str, feedback: float | None = 0.75, **changes: Any) -> dict[str, Any]:
    prompt = json.dumps([{"role": "user", "content": text}], ensure_ascii=False)
    given = {"trace_id": name, "observation_id": "o", "user_id": name, "prompt": prompt, "completion": "Some."}
    return {**given, "consent": True, "feedback": feedback, "reason": "", **changes}


def test_rows_that_may_not_be_learned_from_are_counted(tmp_path: Path) -> None:
    frozen = row("frozen", "Where does the parcel of the second order from Tuesday stand?")
    rows = [
        row("kept", "When does my order come?"),
        row("silent", "What is it?", feedback=None),
        row("calls", "Look it up.", reason="unshowable_call"),
        row("refused", "Is that so?", consent=False),
        row("withdrawn", "Is it?"),
        row("masked", "Who is it?", completion="Ask [EMAIL]."),
        frozen,
        row("asked", f"Tell me. {ITEM}"),
        row("told", "Tell me.", completion=ITEM),
    ]
    path = tmp_path / "labels.parquet"
    pq.write_table(pa.Table.from_pylist(rows, LABELS), path)
    labels = DatasetRef(uri=str(path), rows=len(rows), digest="d")
    agreed = {(each["trace_id"], "o") for each in rows} - {("withdrawn", "o")}
    kept, left_out = rated_rows(labels, HeldApart({"suite": [ITEM]}, [frozen["prompt"]]), lambda: agreed)
    assert [each.trace_id for each in kept] == ["kept"]
    assert left_out == {
        "unshowable call": 1,
        "without consent": 2,
        "masked answer": 1,
        "kept for suites": 1,
        "holds an evaluation's item": 2,
    }
