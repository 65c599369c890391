"""What the label table says of itself, and what people's reviews of a random sample say of it.

Texts of labels are on a page in `iterations/<id>/label_examples/`, which an erasure deletes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from heapq import nsmallest
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.conversation import shown, shown_answer
from pipeline.core.estimate import Array, rank_correlation, share
from pipeline.core.iteration import Iteration
from pipeline.core.storage import DatasetRef, Store
from pipeline.rewards.records import (
    ABSENT,
    BINS,
    LABELS,
    LOGGED,
    Agreement,
    ComponentSummary,
    HumanAgreement,
    LabelSample,
)
from pipeline.traces.arrow import pc

MIN_SHARED = 20
"""Rows on which two components both speak, from which their agreement is worth a line."""
RANKED = 20_000
"""Rows that enter a rank correlation, drawn from more: its interval is then some 0.03 wide, its cost bounded."""
OPINIONS = ("correct", "feedback", "judge")
"""Components that each judge the whole completion: where they are far apart, one of them is wrong."""
FAR_APART = 0.5
MAX_TEXT = 300


class ReviewedLabel(NamedTuple):
    """One label of a weekly sample that a person has scored, in [0, 1]."""

    week: str
    trace_id: str
    observation_id: str
    score: float


def components(labels: pa.Table) -> dict[str, ComponentSummary]:
    """Every component, those that never spoke included. A null without a reason is `absent`."""
    return {name: _summary(labels, name) for name in LOGGED}


def agreement(labels: pa.Table) -> tuple[Agreement, ...]:
    """Each pair of components that both speak on MIN_SHARED rows or more."""
    columns = {name: _floats(labels[name]) for name in LOGGED}
    agreements: list[Agreement] = []
    for first, second in combinations(LOGGED, 2):
        both = np.flatnonzero(~np.isnan(columns[first]) & ~np.isnan(columns[second]))
        if len(both) >= MIN_SHARED:
            a, b = columns[first][both], columns[second][both]
            same = int(np.count_nonzero((a > 0.5) == (b > 0.5)))
            if len(a) > RANKED:
                drawn = np.random.default_rng(0).choice(len(a), RANKED, replace=False)
                a, b = a[drawn], b[drawn]
            correlation = rank_correlation(a, b)
            agreements.append(
                Agreement(first=first, second=second, agree=share(same, len(both)), rank_correlation=correlation)
            )
    return tuple(agreements)


def human_agreement(labels: pa.Table, reviews: Sequence[ReviewedLabel]) -> HumanAgreement:
    """People against the labels as they are now, on the reviewed rows that still have a label.

    A trace that was drawn in several weeks counts once, with the mean of its reviews. A mean of exactly 0.5 takes no
    side, so it enters the correlation and not the noise. `labels` needs trace_id, observation_id and final_reward.
    """
    asked = pa.array(sorted({review.trace_id for review in reviews}), pa.string())
    kept = labels.filter(pc.is_in(labels["trace_id"], asked))
    rows = zip(*(kept[name].to_pylist() for name in ("trace_id", "observation_id", "final_reward")), strict=True)
    rewards = {(trace, place): reward for trace, place, reward in rows if reward is not None}
    scores: dict[tuple[str, str], list[float]] = {}
    for review in reviews:
        key = (review.trace_id, review.observation_id)
        if key in rewards:
            scores.setdefault(key, []).append(review.score)
    pairs = [(rewards[key], sum(given) / len(given)) for key, given in sorted(scores.items())]
    sides = [(reward > 0.5) != (score > 0.5) for reward, score in pairs if score != 0.5]
    rho = rank_correlation([reward for reward, _ in pairs], [score for _, score in pairs])
    return HumanAgreement(rank_correlation=rho, noise=share(sum(sides), len(sides)), reviews=len(pairs))


def samples(labels: pa.Table, n: int) -> tuple[LabelSample, ...]:
    """At most `n` rows to look at: in turn a high one, a low one, one without a label, one whose components disagree.

    The same rows whatever their order in the table.
    """
    gaps = disagreement(labels).tolist()
    ids = list(zip(labels["trace_id"].to_pylist(), labels["observation_id"].to_pylist(), strict=True))
    rewards: list[float | None] = labels["final_reward"].to_pylist()
    spoken = [(reward, at) for at, reward in enumerate(rewards) if reward is not None]
    ranked = (
        [(-reward, at) for reward, at in spoken],
        spoken,
        [(0.0, at) for at, reward in enumerate(rewards) if reward is None],
        [(-gap, at) for at, gap in enumerate(gaps) if gap >= FAR_APART],
    )
    turns = [nsmallest(n, each, key=lambda one: (one[0], ids[one[1]])) for each in ranked]
    chosen = dict.fromkeys(at for turn in range(n) for rows in turns for _, at in rows[turn : turn + 1])
    rows = labels.take(pa.array(list(chosen)[:n], pa.int64())).to_pylist()
    return tuple(
        LabelSample(
            trace_id=row["trace_id"],
            prompt=cut(chat(row["prompt"])),
            completion=cut(shown_answer(row["completion"] or "")),
            final_reward=row["final_reward"],
            why=why(row),
        )
        for row in rows
    )


def disagreement(labels: pa.Table) -> Array:
    """How far the OPINIONS on each row are apart, in [0, 1]; 0 where fewer than two have spoken."""
    values = np.stack([_floats(labels[name]) for name in OPINIONS])
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)  # NaN where nobody has spoken
    return np.nan_to_num(high - low)


def why(row: dict[str, Any]) -> str:
    """How a label came to be, in words: `correct 1.00 x 0.87 + format 0.00 x 0.13`; or why there is none."""
    weights, missing = json.loads(row["weights"] or "{}"), json.loads(row["missing"] or "{}")
    silent = ", ".join(f"{name} is missing ({reason})" for name, reason in missing.items())
    if row["final_reward"] is None:
        return f"no label: {row['reason']}" + (f"; {silent}" if silent else "")
    parts = " + ".join(f"{name} {row[name]:.2f} x {weight:.2f}" for name, weight in weights.items())
    return f"{parts}; {silent}" if silent else parts


def chat(prompt: str | None) -> str:
    """Chat messages as text, each with its role; what is not chat messages stays as it is."""
    try:
        messages = json.loads(prompt or "[]")
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in shown(messages))
    except (ValueError, TypeError, KeyError, AttributeError):
        return prompt or ""


def cut(text: str, most: int = MAX_TEXT) -> str:
    """The text, or its beginning with an ellipsis, `most` characters long."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _summary(labels: pa.Table, name: str) -> ComponentSummary:
    column = labels[name]
    values = column.drop_null().to_numpy()
    bins, _ = np.histogram(values, bins=BINS, range=(0.0, 1.0))
    reasons: Counter[str] = Counter()
    # Few combinations of reasons occur, each of them often: each is parsed once.
    for entry in pc.value_counts(labels["missing"].filter(pc.is_null(column))).to_pylist():
        reasons[json.loads(entry["values"] or "{}").get(name, ABSENT)] += entry["counts"]
    return ComponentSummary(
        count=len(values),
        mean=float(values.mean()) if len(values) else None,
        histogram=tuple(int(count) for count in bins),
        missing=dict(sorted(reasons.items())),
    )


def _floats(column: pa.ChunkedArray) -> Array:
    """Nulls as NaN."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def examples(labels: DatasetRef, n: int = 12) -> tuple[LabelSample, ...]:
    """`samples` of the newest part of a published table: they do not need all of it in memory."""
    parts = sorted(Path(labels.uri).glob("*.parquet"))
    return samples(pq.read_table(parts[-1], schema=LABELS), n) if parts else ()


def page(store: Store, iteration: Iteration, shown: Sequence[LabelSample]) -> Path:
    """Write the examples, once; the path of the page. Texts are code blocks: nothing in them is Markdown."""
    folder = iteration.path(layout.LABEL_EXAMPLES)
    if not store.path(folder).is_dir():
        with store.staged(folder) as staging:
            (staging / "examples.md").write_text("\n".join(_section(each) for each in shown))
    return store.path(folder, "examples.md")


def _section(sample: LabelSample) -> str:
    reward = "none" if sample.final_reward is None else f"{sample.final_reward:.2f}"
    texts = (sample.why, sample.prompt, sample.completion, f"trace {sample.trace_id}")
    blocks = ("\n".join(f"    {line}" for line in text.splitlines()) or "    (empty)" for text in texts)
    return f"## {reward}\n\n" + "\n\n".join(blocks) + "\n"
