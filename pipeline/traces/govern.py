"""The map: decodes one part of a source, puts it through the gates and stages it by day, in bounded memory."""

import hashlib
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.recipe.traces import Traces
from pipeline.traces.annotations import AttributeTable, StagedAnnotations, annotations_file
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.erased import Forgotten
from pipeline.traces.gates import GateRules, check
from pipeline.traces.records import Reason
from pipeline.traces.scores import Meanings, ScoreCount
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, SourcePart, named_day
from pipeline.traces.staging import StagedDays

BROKEN_OFF = {Reason.TRUNCATED_FILE, Reason.TOO_LARGE}


class GovernTask(NamedTuple):
    """One part to govern. `only`: the days wanted, None for all."""

    address: Address
    part: SourcePart
    place: int
    folder: str
    settings: Traces
    now: datetime
    erased: Forgotten
    attributes: str = ""
    only: frozenset[str] | None = None


class GovernedPart(NamedTuple):
    """`days` maps a day to its number of staged files. Not `whole`: the part broke off."""

    place: int
    sha256: str
    days: dict[str, int]
    rows: int
    whole: bool
    scores: tuple[ScoreCount, ...] = ()


def govern_part(task: GovernTask) -> GovernedPart:
    """Decode, judge and stage a part. Raises ValueError when the source cannot be read at all."""
    digest, folder = hashlib.sha256(), Path(task.folder)
    batcher = BatchBuilder(task.settings, task.part.name)
    attached = AttributeTable(task.attributes) if task.attributes else None
    rules = GateRules(task.settings, task.now, task.erased)
    explain = partial(_seen, task.settings)
    rows, whole = 0, True
    said = StagedAnnotations(annotations_file(folder, task.place), task.place, Meanings(task.settings.scores))
    with StagedDays(folder, task.place, named_day(task.part.name), task.only) as days, said:
        for block in open_source(task.address).rows(task.part, digest):
            if attached is not None:
                attached.join(block.traces)
            batch, unfit = batcher.batch(block.traces)
            checked, reasons = check(batch, rules)
            days.write(checked, reasons, explain)
            days.reject([*block.rejected, *unfit])
            said.write(block)
            rows += len(block.traces) + len(block.rejected) + len(block.scores) + len(block.attributes)
            whole = whole and not BROKEN_OFF & {rejection.reason for rejection in block.rejected}
        if task.part.holds == "calls":
            days.prove_empty()
    return GovernedPart(task.place, digest.hexdigest(), dict(days.files), rows, whole, tuple(said.counts.all()))


def _seen(settings: Traces, batch: pa.RecordBatch, row: int, reason: Reason) -> str:
    """What was seen instead of what should be, without a word of the trace's text."""

    def of(name: str) -> Any:
        return batch[name][row].as_py()

    match reason:
        case Reason.CONSENT:
            return _annotation(settings.consent_key, of("consent_said"))
        case Reason.REGION:
            seen = _annotation(settings.region_key, of("region_said"))
            return f"{seen}, and traces.regions_allowed is {', '.join(settings.regions) or 'empty'}"
        case Reason.CONFIDENTIAL:
            return _annotation(settings.confidential_key, of("confidential_said"))
        case Reason.LATENCY:
            return f"{of('latency_s'):g} s"
        case Reason.TRUNCATED:
            return f"finish_reason {of('finish_reason')}"
        case Reason.FUTURE:
            return f"dated {of('timestamp'):%Y-%m-%d %H:%M} UTC"
        case Reason.SCHEMA:
            empty = [name for name in ("trace_id", "observation_id", "model") if not of(name)]
            return f"without {', '.join(empty)}" if empty else "no user message, or a role that no chat has"
        case Reason.HELPER:
            return "by its name it is no answer: traces.answers says which calls are"
        case Reason.UNREADABLE | Reason.NO_CONTENT:
            return of("unreadable" if reason is Reason.UNREADABLE else "not_recorded")
        case Reason.PII:
            return "an image, audio or file" if of("has_payload") else "text that cannot be searched for personal data"
        case _:
            return ""


def _annotation(key: str, value: str | None) -> str:
    if value is None:
        return f"{key} is absent"
    return (
        f"{key} is {value!r}" if value.isascii() and value.isalnum() and len(value) <= 8 else f"{key} is something else"
    )
