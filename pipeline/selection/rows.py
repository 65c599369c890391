"""The rows of selection: labelled traces as they are read, and the pairs made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow.parquet as pq

from pipeline.storage import DatasetRef
from pipeline.traces.arrow import pc
from pipeline.traces.tools import TOOL_CALLS


class LabelledRow(NamedTuple):
    """One labelled trace; the fields are columns of `pipeline.rewards.records.LABELS`."""

    trace_id: str
    observation_id: str
    user_id: str
    tenant_id: str | None
    consent: bool
    prompt: str
    """The chat messages as canonical JSON: equal prompts are equal strings."""
    completion: str
    reference: str | None
    verifier: str | None
    final_reward: float | None
    profile: str
    correct: float | None
    feedback: float | None
    judge: float | None


class Pair(NamedTuple):
    """A preferred and a rejected completion of one prompt. `margin` is the difference of their rewards."""

    prompt: str
    chosen: LabelledRow
    rejected: LabelledRow
    margin: float


def read_labels(labels: DatasetRef) -> list[LabelledRow]:
    """The labelled traces without those that call tools, which the label stage counts: no prompt can hold a call."""
    table = pq.read_table(labels.uri, columns=[*LabelledRow._fields, "reason"])
    rows = table.filter(pc.not_equal(pc.fill_null(table["reason"], ""), TOOL_CALLS)).drop_columns(["reason"])
    return [LabelledRow(**row) for row in rows.to_pylist()]


def by_prompt(rows: Sequence[LabelledRow]) -> dict[str, list[LabelledRow]]:
    """Groups in the order of their first trace's id; the order of files must not decide a pair."""
    groups: dict[str, list[LabelledRow]] = {}
    for row in sorted(rows, key=lambda row: (row.trace_id, row.observation_id)):
        groups.setdefault(row.prompt, []).append(row)
    return groups
