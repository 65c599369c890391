"""Winners: the best of a prompt's fresh samples (best of k, arXiv 2304.06767); and prompts by the spread of scores."""

from collections.abc import Mapping, Sequence
from statistics import fmean, pvariance
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
    prompt: str
    completion: str
    score: float
    mean: float
    k: int


def winners(groups: Mapping[str, Sequence[LabelledRow]]) -> list[Winner]:
    """The winner of each prompt whose samples differ in score; of equal scores the shorter answer, then by its text."""
    best: list[Winner] = []
    for prompt, group in groups.items():
        drawn = [row for row in group if row.fresh]
        may_win = [r for r in drawn if r.finished and r.completion.strip() and not is_masked(r.completion)]
        scored = [(row.final_reward, row.completion) for row in may_win if row.final_reward is not None]
        if len({score for score, _ in scored}) > 1:
            score, completion = min(scored, key=lambda each: (-each[0], len(each[1]), each[1]))
            best.append(Winner(prompt, completion, score, fmean(score for score, _ in scored), len(drawn)))
    return best


def in_order_of_spread(groups: Mapping[str, Sequence[LabelledRow]]) -> dict[str, Sequence[LabelledRow]]:
    """Groups without a reference whose fresh samples differ in score, the largest variance first: GRPO can be forced
    on them."""
    spread: dict[str, float] = {}
    for prompt, group in groups.items():
        scores = [row.final_reward for row in group if row.fresh and row.final_reward is not None]
        if len(set(scores)) > 1 and not any(row.reference for row in group):
            spread[prompt] = pvariance(scores)
    return {prompt: groups[prompt] for prompt in sorted(spread, key=lambda prompt: (-spread[prompt], prompt))}


def winner_row(
    winner: Winner, prompts: Mapping[str, Sequence[LabelledRow]], clusters: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "prompt": to_rows(winner.prompt),
        "completion": winner.completion,
        "score": winner.score,
        "mean": winner.mean,
        "k": winner.k,
        "trace_ids": [row.trace_id for row in prompts[winner.prompt]],
        "cluster": clusters[winner.prompt],
    }
