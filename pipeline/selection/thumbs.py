"""Thumbs: logged answers that people clearly liked or did not, each by itself."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.selection.chats import CHAT, to_rows
from pipeline.selection.pairing import LabelledRow
from pipeline.traces.pii import is_masked

CLEAR = 0.2
"""Distance of a settled value of feedback from one half that makes a thumb: one clear word, not contradicted."""
THUMBS = pa.schema(
    [
        ("prompt", CHAT),
        ("completion", pa.string()),
        ("label", pa.bool_()),  # liked
        ("weight", pa.float64()),  # how clear it is: 0 at one half, 1 at 0 and at 1
        ("principal", pa.string()),  # the user, else the session, else the trace
        ("trace_id", pa.string()),
        ("cluster", pa.string()),
    ]
)


class RatedAnswer(NamedTuple):
    row: LabelledRow
    liked: bool
    weight: float

    @property
    def rows(self) -> tuple[LabelledRow, ...]:
        return (self.row,)


def thumbs(groups: Mapping[str, Sequence[LabelledRow]]) -> tuple[list[RatedAnswer], int]:
    """The thumbs, and the number of rated rows that make none: unclear, without text, or with masked personal data."""
    rated = [(row, row.feedback) for group in groups.values() for row in group if row.feedback is not None]
    clear = [
        RatedAnswer(row, value > 0.5, 2 * abs(value - 0.5))
        for row, value in rated
        if abs(value - 0.5) >= CLEAR - 1e-9 and row.completion.strip() and not is_masked(row.completion)
    ]
    return clear, len(rated) - len(clear)


def thumb_row(thumb: RatedAnswer, clusters: Mapping[str, str]) -> dict[str, Any]:
    return {
        "prompt": to_rows(thumb.row.prompt),
        "completion": thumb.row.completion,
        "label": thumb.liked,
        "weight": thumb.weight,
        "principal": thumb.row.user_id,
        "trace_id": thumb.row.trace_id,
        "cluster": clusters[thumb.row.prompt],
    }
