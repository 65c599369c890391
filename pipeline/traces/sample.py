"""A look at a source without a run: the newest rows, through the real reader and the gates of a row; it writes nothing.
Metadata is counted by its keys. Gates that compare rows are the stage's, so a run admits as many rows or fewer."""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from pathlib import Path

import msgspec
import pyarrow as pa

from pipeline.core.conversation import conversation
from pipeline.recipe.traces import Traces
from pipeline.traces.annotations import AttributeTable, StagedAnnotations, index_attributes
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.gates import GateRules, check
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.scores import Meanings, ScoreCount, ScoreCounts
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, Source, SourcePart, named_day
from pipeline.traces.unrendered import kinds_of_row

SAID_PARTS = 8
"""Newest parts of scores, and of attributes, that are read with the sample."""


class SourceSample(msgspec.Struct):
    """The newest rows of a source. Counts by name have the most frequent first."""

    source: str
    parts: int
    """Of the whole source."""
    read: list[str] = []
    """Names of the parts that were read, the newest first."""
    rows: int = 0
    admitted: int = 0
    rejected: dict[str, int] = {}
    details: dict[str, str] = {}
    """Of the first row of each reason."""
    consented: int = 0
    """Rows whose consent key says yes."""
    metadata_keys: dict[str, int] = {}
    references: int = 0
    """Admitted rows with an expected answer."""
    feedback: int = 0
    """Rows with a score that is feedback."""
    scores: tuple[ScoreCount, ...] = ()
    """The scores of the parts that were read."""
    scored_wrongly: str = ""
    """Why the stage would refuse them; "" where it would not."""
    models: dict[str, int] = {}
    takes: dict[str, int] = {}
    """Admitted rows by what they take of a chat template beside a single question (pipeline/core/chat_template.py)."""
    longest_prompt: list[dict[str, str]] = []
    """Of the admitted rows, by characters; for counting its tokens."""


def sample_source(address: Address, settings: Traces, now: datetime, limit: int = 1000) -> SourceSample:
    """Read up to `limit` of the newest rows. Raises ValueError when the source cannot be read."""
    source = open_source(address)
    parts = source.parts()
    newest = sorted(parts, key=lambda part: (named_day(part.name) or "", part.name), reverse=True)
    sample, longest = SourceSample(source.label, len(parts)), 0
    rejected, keys, models, takes = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    meanings, scores, scored, looked_at = Meanings(settings.scores), ScoreCounts(), set[str](), list[str]()

    def note(block: Rows) -> None:
        for score in block.scores:
            meant = meanings.of(score)
            scores.add(score, meant)
            if meant.value is not None:
                scored.add(score.trace_id)

    for part in [part for part in newest if part.holds == "scores"][:SAID_PARTS]:
        for block in source.rows(part, hashlib.sha256()):
            note(block)
    with tempfile.TemporaryDirectory(prefix="sample-") as folder:
        attached = _attributes(source, newest, Path(folder))
        for part in [part for part in newest if part.holds == "calls"]:
            if sample.rows >= limit:
                break
            sample.read.append(part.name)
            batcher = BatchBuilder(settings, part.name)
            for block in source.rows(part, hashlib.sha256()):
                note(block)
                traces, refused = _first(block, limit - sample.rows)
                if attached is not None:
                    attached.join(traces)
                batch, unfit = batcher.batch(traces)
                checked, reasons = check(batch, GateRules(settings, now))
                rejected.update(str(reason) for reason in reasons if reason is not None)
                for each in chain(refused, unfit):
                    rejected[str(each.reason)] += 1
                    sample.details.setdefault(str(each.reason), each.detail)
                sample.rows += len(reasons) + len(refused) + len(unfit)
                sample.admitted += reasons.count(None)
                sample.consented += sum(checked["consent"].to_pylist())
                models.update(trace.model for trace in traces)
                looked_at += [trace.trace_id for trace in traces]
                keys.update(key for trace in traces for key in _keys(trace))
                passed = checked.filter(pa.array([reason is None for reason in reasons], pa.bool_()))
                sample.references += passed.num_rows - passed["reference"].null_count
                for row in passed.select(["messages", "completion", "tool_calls", "tools"]).to_pylist():
                    takes.update(kinds_of_row(row))
                    messages = conversation(row)
                    length = sum(len(each["content"]) + len(each.get("tool_calls", "")) for each in messages)
                    if length > longest:
                        longest, sample.longest_prompt = length, messages
                if sample.rows >= limit:
                    break
    sample.rejected, sample.metadata_keys = dict(rejected.most_common()), dict(keys.most_common())
    sample.models, sample.takes = dict(models.most_common()), dict(takes)
    sample.feedback = sum(trace_id in scored for trace_id in looked_at)
    sample.scores, sample.scored_wrongly = tuple(scores.all()), scores.outside()
    return sample


def _first(block: Rows, most: int) -> tuple[list[Trace], list[Rejection]]:
    lines = sorted(row.line for row in chain(block.traces, block.rejected))
    last = lines[most - 1] if len(lines) > most else None
    kept = [row for row in block.traces if last is None or row.line <= last]
    return kept, [row for row in block.rejected if last is None or row.line <= last]


def _attributes(source: Source, newest: Iterable[SourcePart], folder: Path) -> AttributeTable | None:
    parts = [part for part in newest if part.holds == "attributes"][:SAID_PARTS]
    if not parts:
        return None
    path = folder / "said.parquet"
    with StagedAnnotations(path, 0, Meanings(())) as staged:
        for part in parts:
            for block in source.rows(part, hashlib.sha256()):
                staged.write(block)
    return AttributeTable(index_attributes([path], folder / "attributes.duckdb")) if path.exists() else None


def _keys(trace: Trace) -> Iterable[str]:
    try:
        return msgspec.json.decode(trace.metadata, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return ()
