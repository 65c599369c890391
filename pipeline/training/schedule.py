"""The rows of a training, in the order of its steps. Several passes over the data are rows of one epoch, for TRL's
RepeatSampler restarts at its first epoch when a training resumes."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.conversation import to_prompt
from pipeline.core.storage import DatasetRef, Store, digest_file, replacing
from pipeline.recipe.methods import Method
from pipeline.selection.preferences import PreferenceDataset
from pipeline.selection.tables import PAIRS, PROMPTS, THUMBS, WINNERS, table_of
from pipeline.traces.context import IterationContext

Row = dict[str, Any]
Metadata = Callable[[Collection[str]], Mapping[tuple[str, str], str]]
"""Of traces, by trace and prompt (chat messages as JSON); read only where the recipe's own function is to see it."""
METADATA = "metadata"
"""A column added to those of PROMPTS, where a row has any: JSON objects."""
SCHEMAS = {"prompts": PROMPTS, "pairs": PAIRS, "thumbs": THUMBS, "winners": WINNERS}


def schedule(
    context: IterationContext,
    dataset: PreferenceDataset,
    method: Method,
    agreed: Collection[str],
    metadata: Metadata,
) -> tuple[DatasetRef, int]:
    """Write the rows of every step in order; returns them, and how many were left out for want of consent. `agreed`:
    ids of the traces that may be trained on now; `metadata`: of those behind prompts. Raises ValueError when no row is
    left, or none that teaches."""
    source, schema = getattr(dataset, method.table), SCHEMAS[method.table]
    wanted = method.scheduled_rows
    rows = _usable(source, agreed)
    if not rows:
        raise ValueError(
            f"Consent to all {source.rows} rows was withdrawn since they were selected. Make the preference dataset "
            f"again: pt retry preference_dataset --iteration {context.iteration.id}"
        )
    dropped = source.rows - len(rows)
    dice = random.Random(context.recipe.training.seed)
    rows = _with_metadata(context, list(method.usable(rows)), agreed, metadata)
    dice.shuffle(rows)
    order: list[Row] = []
    while len(order) < wanted:
        order += dice.sample(rows, len(rows))
    return _write(context.store, context.iteration.path(layout.TRAINING_ROWS), order[:wanted], schema), dropped


def rows_without_consent(dataset: PreferenceDataset, method: Method, agreed: Collection[str]) -> int:
    """How many rows that the method would learn from have no consent any more: as many as the plan left out, or more
    where consent was withdrawn since it was made."""
    table: DatasetRef = getattr(dataset, method.table)
    return table.rows - len(_usable(table, agreed))


def held_out_rows(
    context: IterationContext,
    dataset: PreferenceDataset,
    method: Method,
    agreed: Collection[str],
    metadata: Metadata,
    on_scores: bool = False,
) -> DatasetRef | None:
    """Write the held-out prompts that the training may be judged by, `validation.prompts` of them at most. Where none
    of them has a reference, those without: answers to them tell drift, length and cuts, and no accuracy. `on_scores`:
    the training has no references, and is judged by prompts of its own kind."""
    validation = context.recipe.training.validation
    if not validation.every_steps:
        return None
    rows = [] if on_scores else _usable(dataset.held_out_prompts, agreed)
    if not rows and (on_scores or "verifiable" not in method.needs) and context.recipe.training.engine == "trl":
        rows = _usable(dataset.held_out_unverified, agreed)
    rows = _with_metadata(context, rows[: validation.prompts], agreed, metadata)
    return _write(context.store, context.iteration.path(layout.HELD_OUT_ROWS), rows, PROMPTS) if rows else None


def metadata_by_prompt(*tables: DatasetRef | None) -> dict[str, str]:
    """The metadata of scheduled rows, by prompt (chat messages as JSON); empty where they have none."""
    by_prompt: dict[str, str] = {}
    for table in tables:
        if table is not None and METADATA in pq.read_schema(table.uri).names:
            rows = pq.read_table(table.uri, columns=["prompt", METADATA]).to_pylist()
            by_prompt |= {to_prompt(row["prompt"]): row[METADATA] for row in rows}
    return by_prompt


def _with_metadata(
    context: IterationContext, rows: list[Row], agreed: Collection[str], metadata: Metadata
) -> list[Row]:
    """Rows of prompts with what the first agreeing trace behind each says of itself, where the user's own function may
    be asked about answers to them."""
    if context.recipe.rewards.custom is None or not rows or "trace_ids" not in rows[0]:
        return rows
    behind = [[trace for trace in row["trace_ids"] if trace in agreed] for row in rows]
    held = metadata({trace for traces in behind for trace in traces})
    prompts = [to_prompt(row["prompt"]) for row in rows]
    own = [
        next((held[trace, prompt] for trace in traces if (trace, prompt) in held), "{}")
        for traces, prompt in zip(behind, prompts, strict=True)
    ]
    return [{**row, METADATA: text} for row, text in zip(rows, own, strict=True)]


def _write(store: Store, name: str, rows: Sequence[Row], schema: pa.Schema) -> DatasetRef:
    path = store.path(name)
    if any(row.get(METADATA, "{}") != "{}" for row in rows):
        schema = schema.append(pa.field(METADATA, pa.string()))
    with replacing(path) as stream:
        pq.write_table(table_of(rows, schema), stream)
    return DatasetRef(uri=str(path), rows=len(rows), digest=digest_file(path))


def _usable(table: DatasetRef | None, agreed: Collection[str]) -> list[Row]:
    """A prompt while anybody who asked it agrees, a thumb while its user does, a pair while both of its sides do."""

    def may_be_used(row: Row) -> bool:
        if "trace_ids" in row:
            return any(trace in agreed for trace in row["trace_ids"])
        return all(row[name] in agreed for name in ("trace_id", "chosen_trace", "rejected_trace") if name in row)

    return [row for row in pq.read_table(table.uri).to_pylist() if may_be_used(row)] if table is not None else []
