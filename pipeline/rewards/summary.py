"""The summary of a label table: what it says of itself, and what people's reviews say of it."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.estimate import Estimate, share
from pipeline.core.storage import DatasetRef
from pipeline.rewards import reviews
from pipeline.rewards.records import (
    ABSENT,
    BINS,
    LABELS,
    LOGGED,
    ComponentSummary,
    JudgeReport,
    RewardLabels,
)
from pipeline.rewards.reviews import ReviewedLabel
from pipeline.traces.arrow import pc
from pipeline.traces.context import IterationContext
from pipeline.traces.rows import UNANSWERED

TEXTS = ("prompt", "completion", "reference", "answer")


class LabelCounts(NamedTuple):
    """What labelling came to. `checked`: verdicts computed now; `remembered`: those that were there already."""

    rows: int
    checked: int
    remembered: int


def summarise(
    context: IterationContext,
    dataset: DatasetRef,
    panel: JudgeReport,
    counts: LabelCounts,
) -> RewardLabels:
    """The record of a published label table."""
    labels = pq.read_table(dataset.uri, columns=[name for name in LABELS.names if name not in TEXTS])
    traces = labels.filter(pc.is_null(labels["origin"]))
    traces = traces if traces.num_rows else labels  # imports say nothing of what is served
    rewards: Any = traces["final_reward"].drop_null().to_numpy()
    survey = reviews.survey(context.store)
    for problem in survey.problems:
        context.log(problem)
    answered = traces.num_rows - counts_of(traces, "reason").get(UNANSWERED, 0)
    return RewardLabels(
        iteration=context.iteration.id,
        dataset=dataset,
        labelled=labels.num_rows - labels["final_reward"].null_count,
        coverage=len(rewards) / answered if answered else float(bool(labels.num_rows)),
        unlabelled=counts_of(labels, "reason"),
        outcomes=counts_of(labels, "outcome"),
        mean_reward=float(rewards.mean()) if len(rewards) else 0.0,
        histogram=histogram_of(rewards),
        components=components(labels),
        human_noise=human_noise(labels, survey.reviewed),
        checked=counts.checked,
        remembered=counts.remembered,
        tokens=panel.tokens,
        usd=panel.usd,
    )


def histogram_of(values: Any) -> tuple[int, ...]:
    """Values in BINS equal bins of [0, 1]."""
    return tuple(int(n) for n in np.histogram(values, bins=BINS, range=(0.0, 1.0))[0])


def components(labels: pa.Table) -> dict[str, ComponentSummary]:
    """Every component, those that never spoke included. A null without a reason is `absent`."""
    return {name: _component(labels, name) for name in LOGGED}


def _component(labels: pa.Table, name: str) -> ComponentSummary:
    column = labels[name]
    values = column.drop_null().to_numpy()
    reasons: Counter[str] = Counter()
    # Few combinations of reasons occur, each of them often: each is parsed once.
    for entry in pc.value_counts(labels["missing"].filter(pc.is_null(column))).to_pylist():
        reasons[json.loads(entry["values"] or "{}").get(name, ABSENT)] += entry["counts"]
    return ComponentSummary(
        count=len(values),
        distinct=len(np.unique(values)),
        mean=float(values.mean()) if len(values) else None,
        missing=dict(sorted(reasons.items())),
    )


def human_noise(labels: pa.Table, reviewed: Sequence[ReviewedLabel]) -> Estimate:
    """Share of the reviewed labels, as they are now, on whose side people disagree.

    A trace that was drawn in several weeks counts once, with the mean of its reviews; a mean of exactly 0.5 takes no
    side. `labels` needs trace_id, observation_id and final_reward.
    """
    asked = pa.array(sorted({review.trace_id for review in reviewed}), pa.string())
    kept = labels.filter(pc.is_in(labels["trace_id"], asked))
    rows = zip(*(kept[name].to_pylist() for name in ("trace_id", "observation_id", "final_reward")), strict=True)
    rewards = {(trace, place): reward for trace, place, reward in rows if reward is not None}
    scores: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for review in reviewed:
        scores[review.trace_id, review.observation_id].append(review.score)
    means = {key: sum(given) / len(given) for key, given in scores.items() if key in rewards}
    sides = [(rewards[key] > 0.5) != (score > 0.5) for key, score in means.items() if score != 0.5]
    return share(sum(sides), len(sides))


def counts_of(labels: pa.Table, column: str) -> dict[str, int]:
    return dict(sorted(Counter(value for value in labels[column].to_pylist() if value).items()))
