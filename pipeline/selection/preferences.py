"""The preference dataset: pairs for DPO, prompts for GRPO, thumbs for KTO, winners of fresh samples for SFT.
GRPO's prompts are ordered by expected p(1 - p); those always right or wrong are left out (arXiv 2503.14476)."""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from pipeline.core import layout
from pipeline.core.estimate import UNKNOWN, Estimate
from pipeline.core.storage import DatasetRef, Record, Store, digest_file
from pipeline.recipe.methods import METHODS
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.selection.clusters import cluster, held_out
from pipeline.selection.contamination import ContaminationReport
from pipeline.selection.evidence import Evidence, measure, prompt_stats
from pipeline.selection.pairing import (
    LabelledRow,
    by_prompt,
    calls_tools,
    mix,
    pairs,
    read_askable,
    read_samples,
)
from pipeline.selection.tables import (
    PAIRS,
    PROMPTS,
    THUMBS,
    WINNERS,
    pair_rows,
    prompt_rows,
    table,
    thumb_rows,
    unverified_rows,
    winner_rows,
)
from pipeline.selection.trainable import HeldApart, trainable, trainable_samples, within_context
from pipeline.selection.unpaired import (
    demonstrations,
    in_order_of_spread,
    is_liked,
    measure_scorers,
    thumbs,
    winners,
)
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import shared_lock


class PreferenceDataset(Record):
    iteration: str
    pairs: DatasetRef
    prompts: DatasetRef
    held_out_prompts: DatasetRef
    """Of clusters that training never sees, with those that are always right or wrong, as production asks them: to
    watch its progress with, not to judge it by."""
    thumbs: DatasetRef | None = None
    winners: DatasetRef | None = None
    held_out_unverified: DatasetRef | None = None
    """Held-out prompts without a reference: drift can be measured on them too."""
    evidence: Evidence
    contamination: ContaminationReport
    frozen: int = 0
    without_consent: int
    with_tools: int = 0
    """Labelled rows with tools, where the recipe leaves them out."""
    beyond_context: int = 0
    """Labelled rows that the model's context has no room for."""
    left_out: dict[str, dict[str, int]] = Field(default={})
    """By table and reason: `cap` on users and tenants, `share` of imports, and `unproven` thumbs of traces."""


class ScoredSamples(NamedTuple):
    dataset: DatasetRef | None = None
    reward_model: RewardModelReport | None = None


def build(
    context: IterationContext,
    labels: DatasetRef,
    apart: HeldApart,
    governed: Callable[[], Collection[tuple[str, str]]],
    human_noise: Estimate = UNKNOWN,
    fresh: ScoredSamples = ScoredSamples(),  # noqa: B008 (it is frozen)
) -> PreferenceDataset:
    """Build and publish the tables once. `governed`: (trace_id, observation_id) of the rows that may be trained on now.

    Raises ValueError when more than `max_contamination` of the rows hold evaluation items.
    """
    store, iteration, settings = context.store, context.iteration, context.recipe.selection

    def make() -> PreferenceDataset:
        askable = read_askable(labels)
        labelled = [row for row in askable if settings.tools == "train" or not calls_tools(row)]
        fitting = within_context(labelled, Path(iteration.champion.uri), context.recipe.training)
        usable = trainable(fitting, apart, governed, settings.max_contamination)
        logged = [row for row in usable.rows if not row.unanswered]
        drawn = trainable_samples(read_samples(fresh.dataset), usable.rows, apart) if fresh.dataset is not None else []
        groups = by_prompt([*logged, *drawn])
        clusters = cluster(groups)
        hidden = held_out(clusters, settings.held_out_share)
        trained = {prompt: group for prompt, group in groups.items() if clusters[prompt] not in hidden}
        watched = {prompt: group for prompt, group in groups.items() if clusters[prompt] in hidden}
        on_scores = settings.method != "auto" and METHODS[settings.method].forced_on_scores
        auto = settings.method == "auto"
        scorers = measure_scorers(trained, context.recipe.rewards.fresh, fresh.reward_model)
        paired = mix(pairs(trained if on_scores else _trusted(trained), settings), settings)
        clear = thumbs(trained, settings)
        rated = mix(clear, settings, proven=not auto or scorers.order_thumbs(settings))
        shown = demonstrations(trained)
        if settings.method != "auto" and "winners" in METHODS[settings.method].needs:  # of imports, good answers
            shown += [row for row in clear if is_liked(row) and row.origin]
        best = winners(trained) if not (auto and shown) or scorers.agree(settings) else []
        examples = mix(shown, settings, own=len(best))
        best += examples.kept
        checkable = sorted(
            (each for each in prompt_stats(trained, settings) if each.status in ("frontier", "unknown")),
            key=lambda each: (each.status != "frontier", -each.informative, each.prompt),
        )
        scored = in_order_of_spread(trained)
        policy = prompt_rows(checkable) if checkable or not on_scores else unverified_rows(scored)
        asked = prompt_rows(each for each in prompt_stats(watched, settings) if each.status != "ambiguous")
        tables = {
            "pairs": table(PAIRS, clusters, pair_rows(paired.kept)),
            "prompts": table(PROMPTS, clusters, policy),
            "held_out_prompts": table(PROMPTS, clusters, asked),
            "thumbs": table(THUMBS, clusters, thumb_rows(rated.kept)),
            "winners": table(WINNERS, clusters, winner_rows(best, trained)),
            "held_out_unverified": table(PROMPTS, clusters, unverified_rows(watched)),
        }
        measured = [row for group in trained.values() for row in _measured(group)]
        evidence = measure(measured, paired.kept, human_noise, settings, rated.kept)
        refs = _publish(store, iteration.path(layout.PREFERENCE_TABLES), tables)
        return PreferenceDataset(
            iteration=iteration.id,
            **refs,
            evidence=evidence.model_copy(
                update={
                    "winners": len(best),
                    "demonstrations": len(examples.kept),
                    "scorers": scorers,
                    "scored_prompts": len(scored),
                }
            ),
            contamination=usable.contamination,
            frozen=usable.frozen,
            without_consent=usable.without_consent,
            with_tools=len(askable) - len(labelled),
            beyond_context=len(labelled) - len(fitting),
            left_out={"pairs": paired.left_out, "thumbs": rated.left_out, "winners": examples.left_out},
        )

    with shared_lock(store):
        return store.once(iteration.path(layout.PREFERENCES), PreferenceDataset, make)


def _measured(group: Sequence[LabelledRow]) -> list[LabelledRow]:
    """Evidence counts logged answers; a prompt of a prompt set has only samples, which count in their place."""
    return [row._replace(fresh=False) for row in group] if all(row.fresh for row in group) else list(group)


def _trusted(groups: Mapping[str, Sequence[LabelledRow]]) -> dict[str, list[LabelledRow]]:
    """Without fresh completions that only a scorer rewarded: they make pairs only where the recipe forces it."""
    return {prompt: [row for row in group if row.profile != "fresh"] for prompt, group in groups.items()}


def _publish(store: Store, folder: str, tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    shutil.rmtree(store.path(folder), ignore_errors=True)  # of an attempt that was killed before its record
    with store.staged(folder) as staging:
        for name, table in tables.items():
            pq.write_table(table, staging / f"{name}.parquet")
    refs: dict[str, DatasetRef] = {}
    for name, table in tables.items():
        path = store.path(folder, f"{name}.parquet")
        refs[name] = DatasetRef(uri=str(path), rows=table.num_rows, digest=digest_file(path))
    return refs
