"""Trust: what the label table says of itself, and what people say of it.

Components are summarised and held against each other; labels are held against people's reviews of a random sample.
Agreement is not corrected for chance: two components that are nearly always high agree nearly always, which is why
the rank correlation stands beside it. Owns no decision: the recipe's floors are applied where they are shown.

Labels for a person to look at, with their texts, are a page beside the label table,
`iterations/<id>/label_examples/`, which an erasure deletes: no text of a row goes into Dagster's own storage.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.conversation import shown, shown_answer
from pipeline.core.estimate import Array, Estimate, rank_correlation, share
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
            correlation = _correlation(a, b)
            agreements.append(
                Agreement(first=first, second=second, agree=share(same, len(both)), rank_correlation=correlation)
            )
    return tuple(agreements)


def human_agreement(labels: pa.Table, reviews: Sequence[ReviewedLabel]) -> HumanAgreement:
    """People against the labels as they are now, on the reviewed rows that still have a label.

    A trace that was drawn in several weeks counts once, with the mean of its reviews. A mean of exactly 0.5 takes no
    side, so it enters the correlation and not the noise. `labels` needs trace_id, observation_id and final_reward.
    """
    rewards = _rewards_of(labels, {review.trace_id for review in reviews})
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
    gap = pa.array(disagreement(labels))
    ranked = labels.select(["trace_id", "observation_id", "final_reward"]).append_column("gap", gap)
    ranked = ranked.append_column("row", pa.array(np.arange(labels.num_rows)))
    spoken, silent = pc.is_valid(ranked["final_reward"]), pc.is_null(ranked["final_reward"])
    turns = [
        _first(ranked.filter(spoken), "final_reward", "descending", n),
        _first(ranked.filter(spoken), "final_reward", "ascending", n),
        _first(ranked.filter(silent), "trace_id", "ascending", n),
        _first(ranked.filter(pc.greater_equal(ranked["gap"], FAR_APART)), "gap", "descending", n),
    ]
    chosen = dict.fromkeys(row for turn in range(n) for rows in turns for row in rows[turn : turn + 1])
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


def _correlation(first: Array, second: Array) -> Estimate:
    if len(first) > RANKED:
        rows = np.random.default_rng(0).choice(len(first), RANKED, replace=False)
        first, second = first[rows], second[rows]
    return rank_correlation(first, second)


def _rewards_of(labels: pa.Table, traces: set[str]) -> dict[tuple[str, str], float]:
    kept = labels.select(["trace_id", "observation_id", "final_reward"])
    kept = kept.filter(pc.is_in(kept["trace_id"], pa.array(sorted(traces), pa.string())))
    rows = zip(*(column.to_pylist() for column in kept.columns), strict=True)
    return {(trace, observation): reward for trace, observation, reward in rows if reward is not None}


def _first(ranked: pa.Table, by: str, order: str, n: int) -> list[int]:
    """Places of the first `n`; ids decide between equals."""
    if not ranked.num_rows:  # Arrow cannot select from nothing
        return []
    keys = [(by, order), *((id, "ascending") for id in ("trace_id", "observation_id") if id != by)]
    return ranked.take(pc.select_k_unstable(ranked, k=n, sort_keys=keys))["row"].to_pylist()


def _floats(column: pa.ChunkedArray) -> Array:
    """Nulls as NaN."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


SHOWN = 12


def examples(labels: DatasetRef, n: int = SHOWN) -> tuple[LabelSample, ...]:
    """`trust.samples` of the newest part of a published table: they do not need all of it in memory."""
    parts = sorted(Path(labels.uri).glob("*.parquet"))
    return samples(pq.read_table(parts[-1], schema=LABELS), n) if parts else ()


def page(store: Store, iteration: Iteration, shown: Sequence[LabelSample]) -> Path:
    """Write the examples, once; the path of the page."""
    folder = iteration.path(layout.LABEL_EXAMPLES)
    if not store.path(folder).is_dir():
        with store.staged(folder) as staging:
            (staging / "examples.md").write_text("\n".join(_verdicts_of(each) for each in shown))
    return store.path(folder, "examples.md")


def _verdicts_of(sample: LabelSample) -> str:
    reward = "none" if sample.final_reward is None else f"{sample.final_reward:.2f}"
    texts = (sample.why, sample.prompt, sample.completion, f"trace {sample.trace_id}")
    return f"## {reward}\n\n" + "\n\n".join(map(_indented, texts)) + "\n"


def _indented(text: str) -> str:
    """As a code block, in which nothing that a user wrote is Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines()) or "    (empty)"
