"""Each preset reads the log that it is named for: invented rows, and what they are."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline.recipe.formats import formats
from pipeline.recipe.sources import RowsSource
from pipeline.traces.detect import look
from pipeline.traces.rows import Trace
from pipeline.traces.sources.rows import RowFiles

from .conftest import read

CASES = Path(__file__).parent / "formats"
PRESETS = [name for name, each in formats().items() if each.kind == "rows"]
MORE: dict[str, dict[str, Any]] = {
    "anthropic_batch": {"day": date(2026, 1, 5)},
    "bedrock": {"fields": {"user": "requestMetadata.user"}},
    "langfuse_table": {"fields": {"scores": "thumb"}},
}
"""What a section says besides the preset."""


def section(name: str) -> RowsSource:
    requests = CASES / f"{name}.requests.jsonl"
    more = {"requests": str(requests)} if requests.exists() else {}
    return RowsSource(uri=str(CASES / f"{name}.jsonl"), preset=name, **more, **MORE.get(name, {}))


def shown(trace: Trace) -> dict[str, Any]:
    id = "digest" if trace.observation_id.startswith("row-") else trace.observation_id
    told = {
        "id": id, "trace": "" if trace.trace_id == trace.observation_id else trace.trace_id, "model": trace.model,
        "user": trace.user_id, "session": trace.session_id, "time": trace.timestamp.isoformat(), "name": trace.name,
        "messages": [f"{each['role']}: {each['content']}" for each in trace.messages], "completion": trace.completion,
        "tool_calls": trace.tool_calls, "tools": trace.tools, "tokens": [trace.input_tokens, trace.output_tokens],
        "latency_s": trace.latency_s, "finish": trace.finish_reason, "metadata": json.loads(trace.metadata),
        "level": trace.level if trace.level != "DEFAULT" else None, "unreadable": trace.unreadable,
    }  # fmt: skip
    return {key: value for key, value in told.items() if value not in (None, "", [], {}, [None, None])}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_reads_its_log(name: str) -> None:
    source = section(name)
    result = read(RowFiles(source.uri, source))
    assert {
        "traces": [shown(trace) for trace in result.traces],
        "rejected": [f"{each.line}: {each.reason}: {each.detail}" for each in result.rejected],
        "scores": [[score.observation_id, score.name, score.value] for score in result.scores],
    } == json.loads((CASES / f"{name}.expected.json").read_text())


@pytest.mark.parametrize("name", PRESETS)
def test_a_log_is_told_by_its_rows(name: str) -> None:
    assert look(str(CASES / f"{name}.jsonl")).format == name


def test_bodies_of_several_apis_are_one_log(tmp_path: Path) -> None:
    texts = [(CASES / f"{name}.jsonl").read_text() for name in ("openai_logs", "anthropic", "ollama")]
    (tmp_path / "calls.jsonl").write_text("".join(f"{text.splitlines()[0]}\n" for text in texts))
    assert look(str(tmp_path)).format == "openai_logs"
    source = RowsSource(uri=str(tmp_path), preset="openai_logs")
    answers = [(trace.completion, trace.user_id) for trace in read(RowFiles(source.uri, source)).traces]
    assert answers == [("Yes, four.", "ann")] * 3
