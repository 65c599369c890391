"""The summary of a label table: what a person wants to know of it first, and what selection needs of its noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.storage import DatasetRef
from pipeline.recipe.rewards import Rewards
from pipeline.rewards import drift, reviews, trust
from pipeline.rewards.custom import custom_id
from pipeline.rewards.judge_stage import JudgeStageResult
from pipeline.rewards.records import ABSENT, BINS, LABELS, ComponentSummary, CustomReport, JudgeReport, RewardLabels
from pipeline.traces.context import IterationContext
from pipeline.traces.prompt_sets import UNANSWERED

TEXTS = ("prompt", "completion", "reference", "answer")


def summarise(
    context: IterationContext,
    dataset: DatasetRef,
    panel: JudgeStageResult,
    checked: int,
    remembered: int,
    set_aside: Mapping[str, int],
) -> RewardLabels:
    """The record of a published label table; the iteration's distribution of rewards is noted for the next one."""
    store, iteration = context.store, context.iteration
    labels = pq.read_table(dataset.uri, columns=[name for name in LABELS.names if name not in TEXTS])
    rewards: Any = labels["final_reward"].drop_null().to_numpy()
    bins, _ = np.histogram(rewards, bins=BINS, range=(0.0, 1.0))
    mean = float(rewards.mean()) if len(rewards) else 0.0
    histogram = tuple(int(n) for n in bins)
    distribution = drift.RewardDistribution(
        iteration=iteration.id, number=iteration.number, model_name=iteration.model_name, histogram=histogram, mean=mean
    )
    placed = drift.record(store, distribution)
    components = trust.components(labels)
    unlabelled = _counts(labels, "reason")
    answered = labels.num_rows - unlabelled.get(UNANSWERED, 0)
    return RewardLabels(
        iteration=iteration.id,
        dataset=dataset,
        labelled=len(rewards),
        coverage=len(rewards) / answered if answered else float(bool(labels.num_rows)),
        unlabelled=unlabelled,
        outcomes=_counts(labels, "outcome"),
        profiles=_counts(labels, "profile"),
        mean_reward=mean,
        histogram=histogram,
        components=components,
        agreement=trust.agreement(labels),
        judge=_judge(context.recipe.rewards, panel, components),
        custom=None
        if context.recipe.rewards.custom is None
        else CustomReport(
            id=custom_id(context.recipe.rewards),
            scored=components["custom"].count,
            failed={reason: rows for reason, rows in components["custom"].missing.items() if reason != ABSENT},
            distinct=len(labels["custom"].drop_null().unique()),
        ),
        humans=trust.human_agreement(labels, reviews.survey(store).reviewed),
        drift=drift.against(store, placed),
        set_aside=dict(set_aside),
        checked=checked,
        remembered=remembered,
        tokens=panel.tokens,
        usd=panel.usd,
    )


def _judge(
    settings: Rewards, panel: JudgeStageResult, components: Mapping[str, ComponentSummary]
) -> JudgeReport | None:
    if settings.judge is None:
        return None
    admission = panel.admission
    silent = components["judge"].missing if "judge" in components else {}
    return JudgeReport(
        id=panel.judge_id,
        model=settings.judge.model,
        attacks_withstood=admission.attacks_withstood if admission else 0,
        attacks=admission.attacks if admission else 0,
        asked=panel.asked,
        remembered=panel.remembered,
        abstained={reason: rows for reason, rows in silent.items() if reason != "absent"},
        order=panel.order,
        tokens=panel.tokens,
        usd=panel.usd,
    )


def _counts(labels: pa.Table, column: str) -> dict[str, int]:
    return dict(Counter(value for value in labels[column].to_pylist() if value))
