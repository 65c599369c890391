"""Traces of MLflow: logged by its own SDK into its own store, and read back."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline.core.storage import Store
from pipeline.recipe.sources import MlflowSource
from pipeline.recipe.traces import ScoreMeaning
from pipeline.traces import materialize
from pipeline.traces.lake import local_lake
from pipeline.traces.sources import mlflow_traces
from pipeline.traces.sources.mlflow_traces import TOOLS, MlflowTraces

from ..conftest import govern
from .conftest import all_of, read, reasons

pytestmark = pytest.mark.slow
DAY = datetime(2026, 1, 5, 10, tzinfo=UTC)
NS = 10**9


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def log_call(
    client: Any, experiment: str, number: int, at: datetime = DAY, tags: dict[str, str] | None = None, **call: Any
) -> str:
    """One trace: a chain, and the model call in it. The id of the trace."""
    start = int((at + timedelta(seconds=number)).timestamp()) * NS
    given = {"user_consent": "true", "mlflow.trace.user": f"u{number}", "mlflow.trace.session": "s", **(tags or {})}
    asked = {"model": "m", "messages": [{"role": "user", "content": f"What is {number} + 1?"}]}
    kept = {"tags": given, "experiment_id": experiment, "start_time_ns": start}
    root = client.start_trace("desk", inputs={"question": "?"}, **kept)
    span = client.start_span(
        "answer", root.trace_id, root.span_id, call.get("type", "CHAT_MODEL"), inputs=call.get("inputs", asked),
        attributes=call.get("attributes"), start_time_ns=start,
    )  # fmt: skip
    answer = {"choices": [{"message": {"role": "assistant", "content": str(number + 1)}, "finish_reason": "stop"}]}
    client.end_span(
        root.trace_id, span.span_id, call.get("outputs", answer), status=call.get("status", "OK"),
        end_time_ns=start + NS * 3 // 4,
    )  # fmt: skip
    client.end_trace(root.trace_id, outputs={"answer": "."}, end_time_ns=start + NS)
    return root.trace_id


@pytest.fixture
def client(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    import mlflow

    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)  # set_tracking_uri() would leave its word in the environment
    return mlflow.MlflowClient(server)


def section(*names: str, **changes: Any) -> MlflowSource:
    given = {"experiments": names, "since": DAY.date(), "until": DAY.date(), **changes}
    return MlflowSource.model_validate(given)


def test_a_trace_is_read_with_its_assessments(server: str, client: Any, store: Store) -> None:
    import mlflow
    from mlflow.entities import AssessmentSource

    experiment = client.create_experiment("whole")
    usage = {"mlflow.chat.tokenUsage": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}}
    id = log_call(client, experiment, 1, attributes=usage)
    human, judge = (AssessmentSource(source_type=kind, source_id="x") for kind in ("HUMAN", "LLM_JUDGE"))
    above = client.get_trace(id).data.spans[0].span_id
    mlflow.log_feedback(trace_id=id, span_id=above, name="thumb", value=True, source=human)
    mlflow.log_feedback(trace_id=id, name="stars", value=4, source=human)
    mlflow.log_feedback(trace_id=id, name="leaks", value=True)
    mlflow.log_feedback(trace_id=id, name="tone", value="good", source=human)
    mlflow.log_feedback(trace_id=id, name="relevance", value=0.25, source=judge)
    mlflow.log_feedback(trace_id=id, name="broken", error="no answer", source=judge)
    replaced = mlflow.log_feedback(trace_id=id, name="useful", value=False, source=human)
    mlflow.override_feedback(trace_id=id, assessment_id=replaced.assessment_id, value=True, source=human)
    mlflow.log_expectation(trace_id=id, name="expected_answer", value="2", source=human)
    rows = read(MlflowTraces(server, section("whole")))
    (trace,) = rows.traces
    assert reasons(rows) == ["not_generation:1:2026-01-05"]
    assert (trace.trace_id, trace.model, trace.user_id, trace.session_id) == (id, "m", "u1", "s")
    assert (trace.latency_s, trace.input_tokens, trace.output_tokens, trace.finish_reason) == (0.75, 7, 3, "stop")
    assert trace.messages == [{"role": "user", "content": "What is 1 + 1?"}] and trace.completion == "2"
    assert trace.timestamp == datetime(2026, 1, 5, 10, 0, 1)
    scores = {(s.name, s.kind, s.word or s.value, s.source) for s in rows.scores}
    assert scores == {("thumb", "BOOLEAN", 1.0, "HUMAN"), ("stars", "NUMERIC", 4.0, "HUMAN"),
                      ("leaks", "BOOLEAN", 1.0, "CODE"), ("tone", "CATEGORICAL", "good", "HUMAN"),
                      ("useful", "BOOLEAN", 1.0, "HUMAN"),
                      ("relevance", "NUMERIC", 0.25, "LLM_JUDGE")}  # fmt: skip
    source = section("whole")
    governed = govern(store, source, server, scores=(ScoreMeaning.model_validate({"name": "useful", "from": "user"}),))
    table = materialize.read(store, local_lake(store), governed.iteration.dataset).to_pylist()
    assert [(row["reference"], row["feedback_mean"], row["feedback_count"]) for row in table] == [("2", 1.0, 2)]
    assert json.loads(table[0]["metadata"]) == {"user_consent": "true", "expected_answer": "2"}


def test_days_are_pages_of_their_own(server: str, client: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, other = client.create_experiment("paged"), client.create_experiment("unread")
    monkeypatch.setattr(mlflow_traces, "PAGE", 3)
    for number in range(5):
        log_call(client, experiment, number)
    log_call(client, experiment, 0, DAY + timedelta(days=1))
    log_call(client, other, 1)
    source = MlflowTraces(server, section("paged", until="2026-01-07"))
    counts = {part.name: len(read(source, part).traces) for part in source.parts()}
    assert counts == {"traces/2026-01-05": 5, "traces/2026-01-06": 1, "traces/2026-01-07": 0}
    governed = govern(store, section("paged", until="2026-01-07"), server)
    assert (governed.seen, governed.admitted) == (12, 6)

    def digest() -> str:
        content = hashlib.sha256()
        all_of(source.rows(source.parts()[0], content))
        return content.hexdigest()

    first = digest()
    monkeypatch.setattr(mlflow_traces, "PAGE", 5)
    assert digest() == first
    log_call(client, experiment, 9)
    assert digest() != first


def test_the_tools_that_a_call_offers_are_kept(server: str, client: Any) -> None:
    tool = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
    experiment = client.create_experiment("tools")
    log_call(client, experiment, 1, inputs={"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]})
    log_call(client, experiment, 2, attributes={TOOLS: [tool]})
    assert [json.loads(t.tools or "") for t in read(MlflowTraces(server, section("tools"))).traces] == [[tool]] * 2


def test_what_is_no_answer_is_counted(server: str, client: Any) -> None:
    experiment = client.create_experiment("odd")
    log_call(client, experiment, 1, type="TOOL")
    log_call(client, experiment, 2, outputs={"kind": {"beam": "x"}})
    log_call(client, experiment, 3, status="ERROR")
    log_call(client, experiment, 4, inputs=None, outputs=None)
    log_call(client, experiment, 5, type="LLM", inputs="Say it.", outputs="It.")
    rows = read(MlflowTraces(server, section("odd")))
    by_user = {trace.user_id: trace for trace in rows.traces}
    assert sorted(reason.partition(":")[0] for reason in reasons(rows)) == ["no_content", *["not_generation"] * 6]
    assert by_user["u2"].unreadable is not None and by_user["u3"].level == "ERROR"
    assert (by_user["u5"].messages, by_user["u5"].completion) == ([{"role": "user", "content": "Say it."}], "It.")


def test_a_server_that_goes_away_breaks_the_day_off(server: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = client.create_experiment("cut")
    for number in range(4):
        log_call(client, experiment, number)
    monkeypatch.setattr(mlflow_traces, "PAGE", 2)
    real = type(client).search_traces

    def cut(self: Any, **asked: Any) -> Any:
        if asked["page_token"]:
            raise ConnectionError
        return real(self, **asked)

    monkeypatch.setattr(type(client), "search_traces", cut)
    rows = read(MlflowTraces(server, section("cut")))
    assert len(rows.traces) == 2 and reasons(rows)[-1] == "truncated_file:5:2026-01-05"


def test_what_cannot_be_read_is_told(server: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"MLflow at sqlite:.* has no experiment 'none'\. Give names of exp"):
        MlflowTraces(server, section("none")).probe()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    away = MlflowTraces("http://me:secret@127.0.0.1:1", section("none"))
    with pytest.raises(ValueError, match=r"^MLFLOW_TRACES_URI .*MLflow at http://.* gives no answer") as e:
        away.parts()
    assert "secret" not in str(e.value)


def test_other_experiments_are_another_source(server: str, client: Any) -> None:
    for name in ("one", "two"):
        client.create_experiment(name)
    asked = (("one",), ("two",), ("one", "two"), ("one",))
    first, *others, again = [MlflowTraces(server, section(*names)).parts()[0].version for names in asked]
    assert first == again and len({first, *others}) == 3
