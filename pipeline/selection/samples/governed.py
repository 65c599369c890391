"""The governed rows behind logged prompts, as they are scored: the table of labels has no metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from pipeline.rewards.samples import COLUMNS, RewardSample, samples
from pipeline.traces.arrow import pc
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import open_lake
from pipeline.traces.materialize import window_of
from pipeline.traces.scope import where


def governed_rows(context: IterationContext, trace_ids: Collection[str]) -> Iterator[RewardSample]:
    """The rows of these traces in the iteration's dataset. Raises ValueError where it is not there any more."""
    traces = pa.array(sorted(set(trace_ids)), pa.string())
    with open_lake(context.lake) as lake:
        window = window_of(context.store, lake, context.iteration.dataset)
        for batch in lake.batches(window.days, window.snapshot, COLUMNS, where(window.scope)):
            table = pa.table(batch)
            held = table.filter(pc.is_in(table["trace_id"], traces)).to_pylist()
            yield from samples(held, {}, context.recipe.rewards)


def metadata_of(context: IterationContext, trace_ids: Collection[str]) -> dict[tuple[str, str], str]:
    """A trace's metadata as a JSON object, by trace and prompt (chat messages as canonical JSON).

    Raises ValueError as `governed_rows`.
    """
    return {(row.trace_id, row.prompt): row.metadata for row in governed_rows(context, trace_ids)}
