"""Winners: of several fresh answers to a logged prompt, the one that a scorer puts first.

Rule (best of k; arXiv 2304.06767). An answer without its end, without text or without a score, or with a
placeholder for personal data, never wins. A prompt has
a winner when two answers that may win differ in score: where all are alike the choice would be a draw. Of equal scores
the shorter answer wins, then the one first in order of its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.selection.chats import CHAT, to_rows
from pipeline.selection.pairing import LabelledRow
from pipeline.traces.pii import is_masked

WINNERS = pa.schema(
    [
        ("prompt", CHAT),
        ("completion", pa.string()),
        ("score", pa.float64()),
        ("mean", pa.float64()),  # score of the answers that may win
        ("k", pa.int64()),  # answers that were drawn
        ("trace_ids", pa.list_(pa.string())),  # whose question it is
        ("cluster", pa.string()),
    ]
)


class Winner(NamedTuple):
    """The best of a prompt's fresh answers."""

    prompt: str
    completion: str
    score: float
    mean: float
    k: int


def winners(groups: Mapping[str, Sequence[LabelledRow]]) -> list[Winner]:
    """Of these prompts that may be trained on, in their order."""
    return [best for prompt, group in groups.items() if (best := _best(prompt, [row for row in group if row.fresh]))]


def _best(prompt: str, drawn: Sequence[LabelledRow]) -> Winner | None:
    scored = [(row.final_reward, row.completion) for row in drawn if row.final_reward is not None and _may_win(row)]
    if len({score for score, _ in scored}) < 2:
        return None
    score, completion = min(scored, key=lambda each: (-each[0], len(each[1]), each[1]))
    return Winner(prompt, completion, score, fmean(score for score, _ in scored), len(drawn))


def _may_win(row: LabelledRow) -> bool:
    return row.finished and bool(row.completion.strip()) and not is_masked(row.completion)


def winner_row(
    winner: Winner, prompts: Mapping[str, Sequence[LabelledRow]], clusters: Mapping[str, str]
) -> dict[str, Any]:
    """A row of WINNERS."""
    return {
        "prompt": to_rows(winner.prompt),
        "completion": winner.completion,
        "score": winner.score,
        "mean": winner.mean,
        "k": winner.k,
        "trace_ids": [row.trace_id for row in prompts[winner.prompt]],
        "cluster": clusters[winner.prompt],
    }
