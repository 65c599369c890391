"""Results of tools in the traces of an iteration's dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipeline.traces.arrow import pc
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import open_lake
from pipeline.traces.materialize import window_of
from pipeline.traces.recorded_calls import Call, Message, results_by_prompt
from pipeline.traces.scope import where

COLUMNS = ("trace_id", "messages")


def recorded_results(
    context: IterationContext, prompts: Collection[str], agreed: Collection[str]
) -> dict[str, dict[Call, str]]:
    """`results_by_prompt` of the traces that `agreed` now. Raises ValueError where the dataset is gone."""
    traces = pa.array(sorted(set(agreed)), pa.string())
    with open_lake(context.lake) as lake:
        window = window_of(context.store, lake, context.iteration.dataset)
        batches = lake.batches(window.days, window.snapshot, COLUMNS, where(window.scope))
        return results_by_prompt(_conversations(batches, traces), prompts)


def _conversations(batches: Iterable[Any], traces: pa.Array) -> Iterator[tuple[str, Sequence[Message]]]:
    for batch in batches:
        table = pa.table(batch)
        for row in table.filter(pc.is_in(table["trace_id"], traces)).to_pylist():
            yield row["trace_id"], row["messages"]
