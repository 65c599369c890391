"""Which calls of a trace are rows, and on which of them a thumb on the trace is."""

import json
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.storage import Store
from pipeline.traces.batch import helpers
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.records import Reason

from .conftest import Run, observation, score, write

ANSWERS = ("Yes, four.", "From 20 euro on.", "You are welcome.")


def chat(*turns: str, minute: int, said: str, **changes: Any) -> dict[str, Any]:
    """A call of one chat; every second turn is the assistant's."""
    roles = ["user", "assistant"] * len(turns)
    asked = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    more = {"input": json.dumps(asked), "output": said, "start_time": f"2026-01-05 10:{minute:02}:00", "user_id": "u"}
    return observation(1, **{"id": f"o{minute}", "name": "answer", **more, **changes})


def call(text: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": text, "arguments": "{}"}}]}


CHAT = [
    chat("B2?", minute=1, said="No answer yet."),  # asked again, of which the last one stands
    chat("B2?", minute=2, said=ANSWERS[0]),
    chat("B2?", ANSWERS[0], "By invoice?", minute=3, said="", output=json.dumps(call("terms"))),
    chat("", minute=4, said=ANSWERS[1], input=[
        {"role": "user", "content": "B2?"}, {"role": "assistant", "content": ANSWERS[0]},
        {"role": "user", "content": "By invoice?"}, call("terms"),
        {"role": "tool", "tool_call_id": "c", "content": "20 euro"},
    ]),
    chat("B2?", ANSWERS[0], "By invoice?", ANSWERS[1], "B2?", minute=5, said=ANSWERS[2]),
    chat("Write a title.", minute=6, said="{}", name="title_generation", metadata={}),
    chat("Give tags.", minute=7, said="", name="chat-tags", level="ERROR"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "kept", "rejected"),
    [
        ("each", ANSWERS, {Reason.INTERMEDIATE: 2, Reason.HELPER: 2}),
        (("answer",), ANSWERS, {Reason.INTERMEDIATE: 2, Reason.HELPER: 2}),
        ("last", (), {Reason.INTERMEDIATE: 6, Reason.ERROR: 1}),
    ],
)
def test_each_answer_of_a_chat_is_a_row(
    run: Run, store: Store, export: Any, answers: Any, kept: Any, rejected: Any
) -> None:
    write(export, "observations_v2/2026-01-05.jsonl", CHAT)
    governed = run(answers=answers, min_admitted_share=0.0)
    assert governed.rejected == rejected
    if kept:
        rows = read(store, local_lake(store), governed.iteration.dataset, ["completion"])["completion"].to_pylist()
        assert tuple(rows) == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "means"), [("10:02:30", [1.0, None, None]), ("10:08:00", [None, None, 1.0]), (None, [None, None, 1.0])]
)
def test_a_thumb_on_a_trace_is_on_its_last_answer_by_then(
    run: Run, store: Store, export: Any, at: str | None, means: list[float | None]
) -> None:
    write(export, "observations_v2/2026-01-05.jsonl", CHAT)
    write(export, "scores/2026-01-05.jsonl", [score(1, 1, 1, updated_at=at and f"2026-01-05 {at}")])
    rows = read(store, local_lake(store), run().iteration.dataset, ["feedback_mean"])
    assert rows["feedback_mean"].to_pylist() == means


def test_a_thumb_on_an_answer_that_stays_out_is_on_no_other(run: Run, store: Store, export: Any) -> None:
    write(export, "observations_v2/2026-01-05.jsonl", [CHAT[1], {**CHAT[4], "metadata": {}}])
    write(export, "scores/2026-01-05.jsonl", [score(1, 1, 0)])
    rows = read(store, local_lake(store), run().iteration.dataset, ["completion", "feedback_count"])
    assert rows.to_pylist() == [{"completion": ANSWERS[0], "feedback_count": 0}]


def test_helpers_are_known_by_their_names() -> None:
    yes = ["title_generation", "generateTitle", "Tags", "follow-up", "guardrail", "llama_guard"]
    no = [None, "", "answer", "ChatOpenAI", "subtitles", "stage", "entitlement", "chat gpt-4o"]
    assert helpers(pa.array([*yes, *no], pa.string()), "each").to_pylist() == [True] * 6 + [False] * 8
