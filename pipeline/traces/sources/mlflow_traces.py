"""Reader of the traces of an MLflow tracking server, with their assessments: one part a UTC day. Written on MLflow 3.17
through its own client. A model call is a span of type CHAT_MODEL or LLM."""

import json
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.core.mlflow_server import mlflow_answers
from pipeline.core.storage import digest_json
from pipeline.recipe.sources import MlflowSource
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Score, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.daily_parts import ServerAway, daily_parts, day_range, read_pages
from pipeline.traces.sources.fields import count, day_of, metadata_text, put, said, utc, utc_or_none
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.parts import normal_tools
from pipeline.traces.sources.protocol import Digest, SourcePart
from pipeline.traces.sources.shapes import object_of

MODEL_CALLS = ("CHAT_MODEL", "LLM")
EXPECTED = ("expected_answer", "expected_response")
"""Names of expectations that are the trace's reference answer."""
USER, SESSION = "mlflow.trace.user", "mlflow.trace.session"
USAGE, TOOLS = "mlflow.chat.tokenUsage", "mlflow.chat.tools"
PAGE = 100


class MlflowTraces:
    """A row's line is its place in the order in which the spans came."""

    def __init__(self, uri: str, section: MlflowSource) -> None:
        self._uri, self._section = uri, section
        scheme, sign, rest = uri.partition("://")
        self.label = f"MLflow at {f'{scheme}{sign}' if sign else uri}{rest.rpartition('@')[2]}"

    def parts(self) -> list[SourcePart]:
        identity = digest_json(self._experiments(self._client()))[:16]
        return sorted(daily_parts(self._section, "traces", identity))

    def probe(self) -> None:
        self._experiments(self._client())

    def remains(self) -> str:
        return (
            "delete the user's traces in its experiments (MlflowClient.delete_traces with their ids), and from its "
            "artifacts and backups"
        )

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        client = self._client()
        return read_pages(part, digest, self._pages(client, self._experiments(client), part), _add)

    def _pages(self, client: Any, experiments: list[str], part: SourcePart) -> Iterator[Iterable[tuple[bytes, Any]]]:
        first, end = (int(moment.timestamp() * 1000) for moment in day_range(part))
        token: str | None = None
        while True:
            with self._answering():
                page = client.search_traces(
                    locations=experiments,
                    filter_string=f"timestamp_ms >= {first} AND timestamp_ms < {end}",
                    max_results=PAGE,
                    order_by=["timestamp_ms ASC"],
                    page_token=token,
                )
            yield [(json.dumps(trace.to_dict(), sort_keys=True, default=str).encode(), trace) for trace in page]
            token = page.token
            if not token:
                return

    def _client(self) -> Any:
        from mlflow import MlflowClient  # takes a second

        with self._answering():
            return MlflowClient(self._uri)

    def _experiments(self, client: Any) -> list[str]:
        ids: list[str] = []
        for name in self._section.experiments:
            with self._answering():
                experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise ValueError(
                    f"{self.label} has no experiment {name!r}. Give names of experiments in traces.source.experiments."
                )
            ids.append(str(experiment.experiment_id))
        return ids

    @contextmanager
    def _answering(self) -> Generator[None]:
        try:
            with mlflow_answers(self._uri):
                yield
        except Exception as error:  # the boundary of MLflow's client and of requests below it
            raise ServerAway(f"MLFLOW_TRACES_URI (or MLFLOW_TRACKING_URI): {error}") from error


def _add(block: Rows, trace: Any, line: int) -> int:
    """Put each span of a trace where it belongs; the line of the last one."""
    info, spans = trace.info, trace.data.spans
    if not spans:
        line += 1
        block.rejected.append(Rejection(line, Reason.NO_CONTENT, str(info.trace_id), day_of(info.request_time)))
    # A score of the span above all calls is the trace's.
    above = {str(span.span_id) for span in spans if span.parent_id is None and span.span_type not in MODEL_CALLS}
    for score in filter(None, (_score(str(info.trace_id), each) for each in info.assessments)):
        score.observation_id = None if score.observation_id in above else score.observation_id
        block.scores.append(score)
    for span in spans:
        line += 1
        try:
            put(block, _trace(info, span, line))
        except Exception as error:  # the boundary of one row: it must not stop the others
            block.rejected.append(refusal(line, error, str(info.trace_id), day_of(span.start_time_ns)))
    return line


def _trace(info: Any, span: Any, line: int) -> Trace | Rejection:
    id = str(info.trace_id)
    if span.span_type not in MODEL_CALLS:
        return Rejection(line, Reason.NOT_GENERATION, id, day_of(span.start_time_ns))
    usage = object_of(span.get_attribute(USAGE))
    attributes = {**info.trace_metadata, **info.tags}
    offered = chat.tools(chat.Chat([], tools=normal_tools(span.get_attribute(TOOLS))))
    asked = chat.parse(span.inputs, "user")
    metadata: dict[str, Any] = {key: value for key, value in attributes.items() if not key.startswith("mlflow.")}
    for each in info.assessments:
        if each.expectation is not None and each.name in EXPECTED and each.valid is not False:
            metadata.setdefault("expected_answer", each.expectation.value)
    trace = Trace(
        trace_id=id,
        observation_id=str(span.span_id),
        timestamp=utc(span.start_time_ns),
        model=str(span.model_name or object_of(span.inputs).get("model") or ""),
        user_id=attributes.get(USER) or None,
        session_id=attributes.get(SESSION) or None,
        messages=[],
        completion="",
        tools=chat.tools(asked) or offered,
        line=line,
        input_tokens=count(usage.get("input_tokens")),
        output_tokens=count(usage.get("output_tokens")),
        latency_s=None if span.end_time_ns is None else (span.end_time_ns - span.start_time_ns) / 1e9,
        error=span.status.description or None,
        metadata=metadata_text(metadata),
        name=span.name or None,
    )
    return said(trace, asked, chat.parse(span.outputs, "assistant"), failed=_word(span.status.status_code) == "ERROR")


def _score(trace_id: str, assessment: Any) -> Score | None:
    """None for an expectation, an error or a feedback that was replaced. One without a source is a program's."""
    if assessment.feedback is None or assessment.error is not None or assessment.valid is False:
        return None
    value: Any = assessment.feedback.value
    kind = "BOOLEAN" if isinstance(value, bool) else "NUMERIC" if isinstance(value, int | float) else "CATEGORICAL"
    return Score(
        id=str(assessment.assessment_id),
        trace_id=trace_id,
        observation_id=str(assessment.span_id) if assessment.span_id else None,
        name=assessment.name,
        value=None if kind == "CATEGORICAL" else float(value),
        source=_word(assessment.source.source_type) if assessment.source is not None else "CODE",
        updated_at=utc_or_none(assessment.last_update_time_ms),
        kind=kind if isinstance(value, bool | int | float | str) else "OTHER",
        word=value if isinstance(value, str) else None,
    )


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))
