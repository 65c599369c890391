"""The stage's account for people: samples of what stayed out and why, and how far the source was read.

Reads what the stage has published. Refuses to show a word of a trace: samples say where a row stands and what was seen
instead of what should be.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.recipe.traces import Traces
from pipeline.storage import Store
from pipeline.traces.database import connect, quoted
from pipeline.traces.floor import weak_parts
from pipeline.traces.lake import LakeConfig, open_lake
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import Producer
from pipeline.traces.watermark import NAME, Watermark

MODELS = 5
"""Names of models that are shown to a person, at most."""


def nothing_counts(governed: GovernedTraces, lake: LakeConfig, settings: Traces, producer: Producer) -> str:
    """Why an empty dataset starts no iteration, and what to do, in one line."""
    if not governed.admitted:
        rows = sorted(governed.rejected.items(), key=lambda item: -item[1])
        why = f" ({', '.join(f'{reason} {count:,}' for reason, count in rows)})" if rows else ""
        return f"Nothing new: {governed.source} has no trace yet that may be learned from{why}. Run again when it has."
    whose = f"{producer.name} version {producer.version}" if producer.version else f"the base model {producer.name}"
    rows = f"Nothing new: none of the {governed.admitted:,} rows of {governed.source} counts for the champion, {whose}"
    if producer.since is not None and settings.counts == "promoted":
        why = f"all are older than its promotion ({producer.since:%Y-%m-%d %H:%M} UTC). Wait for newer traces"
    else:
        with open_lake(lake) as table:
            models = {name for day in table.models(d.day for d in governed.days).values() for name in day}
        why = f"their models are {', '.join(sorted(models)[:MODELS])}, its names {', '.join(sorted(producer.names))}"
        why += ". Serve it under one of its names"
    return f"{rows}: {why}, or let traces.attribution say which rows count."


def weak(store: Store, governed: GovernedTraces, settings: Traces) -> list[str]:
    """The parts of the source that gave less than they should have, each with what is the matter."""
    calls = (store.read(NAME, Watermark) or Watermark()).calls
    return weak_parts(governed.days, calls, settings.min_admitted_share)


def rejected_samples(store: Store, days: Sequence[str], each: int = 2) -> list[tuple[str, str, str]]:
    """Rows (reason, what was seen, file and line), at most `each` per reason, from the ledgers of `days`."""
    ledgers = [path for day in days if (path := store.path("traces", "rejected", f"{day}.jsonl")).exists()]
    if not ledgers:
        return []
    columns = "{reason: 'VARCHAR', file: 'VARCHAR', line: 'BIGINT', detail: 'VARCHAR'}"
    first = f"qualify row_number() over (partition by reason order by file, line) <= {each}"
    with connect(store.path("traces")) as db:
        db.execute("create temp table samples (reason varchar, file varchar, line bigint, detail varchar)")
        for ledger in ledgers:  # one at a time: DuckDB takes 32 MB for each JSON file of a query
            lines = f"read_json({quoted([ledger])}, columns = {columns})"
            db.execute(f"insert into samples select reason, file, line, detail from {lines} where detail <> '' {first}")
        place = "concat(parse_filename(file), ', line ', line)"
        return db.execute(f"select reason, detail, {place} from samples {first} order by reason, file, line").fetchall()


def watermark_line(store: Store) -> tuple[str, int, str, int, str]:
    """Source, parts read, their megabytes as stored, days touched, the newest of them."""
    read = store.read(NAME, Watermark) or Watermark()
    days = sorted(read.days)
    megabytes = sum(part.bytes for part in read.parts.values()) / 1e6
    return read.source, len(read.parts), f"{megabytes:,.1f}", len(days), days[-1] if days else ""
