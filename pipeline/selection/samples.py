"""The stage `samples`: k completions of the champion for each of some logged prompts, each scored as a label is."""

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.storage import DatasetRef, digest_file
from pipeline.recipe.selection import Samples
from pipeline.rewards.custom import custom_id
from pipeline.rewards.judge_stage import ask_judge
from pipeline.rewards.label import LabelGrounds, label_samples
from pipeline.rewards.records import DOES_NOT_APPLY, Finding, JudgeReport
from pipeline.rewards.reward_model.records import AnsweredChat, RewardModelReport
from pipeline.rewards.reward_model.stage import open_scorer
from pipeline.rewards.samples import COLUMNS, RewardSample, samples
from pipeline.rewards.summary import counts_of, histogram_of
from pipeline.selection.draw import SAMPLES, UNENDED, Draw, FreshSamples, draw, sampled_prompts
from pipeline.selection.pairing import read_askable
from pipeline.selection.trainable import HeldApart, trainable
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Answer, InferenceEngine
from pipeline.traces.arrow import pc
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import shared_lock
from pipeline.traces.lake import open_lake
from pipeline.traces.materialize import window_of
from pipeline.traces.scope import where

TABLE = "part-0.parquet"
UNTRAINED, NOT_ADMITTED = "reward_model_untrained", "reward_model_not_admitted"
"""Why a completion has no score of the reward model."""


class Scorers(NamedTuple):
    judge: Endpoint | None
    lineage: Collection[str]
    """Digests of the policy and what it came from; no judge may have one of them."""
    reward_model: RewardModelReport | None = None


def sample(
    context: IterationContext,
    labels: DatasetRef,
    apart: Callable[[], HeldApart],
    governed: Callable[[], Collection[tuple[str, str]]],
    engine: Callable[[Samples], AbstractContextManager[InferenceEngine]],
    scorers: Scorers,
) -> FreshSamples:
    """Draw, score and publish the samples of an iteration once; none where the recipe has no `samples`.

    Raises ValueError for what cannot be asked or judged, RuntimeError for what another attempt may do better.
    """
    store, iteration, section = context.store, context.iteration, context.recipe.samples

    def make() -> FreshSamples:
        if section is None:
            return FreshSamples(iteration=iteration.id)
        selection = context.recipe.selection
        rows = trainable(read_askable(labels), apart(), governed, selection.max_contamination).rows
        rows = [row for row in rows if row.origin is None] or rows  # what imports ask is not what users do
        chosen = sampled_prompts(rows, section, selection.max_principal_share)
        held = {(g.trace_id, g.observation_id): g for g in governed_rows(context, {row.trace_id for row in chosen})}
        prompts = [held[row[:2]] for row in chosen if row[:2] in held]
        began = time.monotonic()
        with engine(section) as opened, opened.open("champion", iteration.champion) as session:
            drawn = draw(context, session, prompts, section)
        seconds = time.monotonic() - began
        table, panel = _scored(context, prompts, drawn, scorers)
        path = store.path(iteration.path(layout.SAMPLE_TABLE))
        shutil.rmtree(path, ignore_errors=True)  # of an attempt that was killed before its record
        with store.staged(iteration.path(layout.SAMPLE_TABLE)) as staging:
            pq.write_table(table, staging / TABLE)
        dataset = DatasetRef(uri=str(path), rows=table.num_rows, digest=digest_file(path / TABLE))
        return _record(context, dataset, drawn, panel, scorers.reward_model).model_copy(update={"seconds": seconds})

    with shared_lock(store):
        return store.once(iteration.path(layout.FRESH), FreshSamples, make)


def governed_rows(context: IterationContext, trace_ids: Collection[str]) -> Iterator[RewardSample]:
    """The rows of these traces in the iteration's dataset. Raises ValueError where it is not there any more."""
    traces = pa.array(sorted(set(trace_ids)), pa.string())
    with open_lake(context.lake) as lake:
        window = window_of(context.store, lake, context.iteration.dataset)
        for batch in lake.batches(window.days, window.snapshot, COLUMNS, where(window.scope)):
            table = pa.table(batch)
            held = table.filter(pc.is_in(table["trace_id"], traces)).to_pylist()
            yield from samples(held, {}, context.recipe.rewards)


def metadata_of(context: IterationContext, trace_ids: Collection[str]) -> dict[tuple[str, str], str]:
    """A trace's metadata as a JSON object, by trace and prompt. Raises ValueError as `governed_rows`."""
    return {(row.trace_id, row.prompt): row.metadata for row in governed_rows(context, trace_ids)}


def _scored(
    context: IterationContext, prompts: Sequence[RewardSample], drawn: Draw, scorers: Scorers
) -> tuple[pa.Table, JudgeReport]:
    """The table, a row for each completion, by day and then in the order of the prompts."""
    account = f"{context.iteration.id}/{layout.SAMPLE_TABLE}"
    by_day: dict[str, list[tuple[RewardSample, Answer, int]]] = {day: [] for day in sorted({p.day for p in prompts})}
    for prompt, answers in zip(prompts, drawn.answers, strict=True):
        by_day[prompt.day] += [(prompt.answered(answer.text), answer, n) for n, answer in enumerate(answers)]
    judged = ((day, [[each for each, a, _ in drawn if _is_scored(each, a)]]) for day, drawn in by_day.items())
    panel = ask_judge(context, account, scorers.judge, scorers.lineage, judged)
    rows: list[dict[str, Any]] = []
    report = scorers.reward_model
    counts = report is not None and report.counts_beside(context.recipe.rewards.fresh)
    opinions = _opinions(report, [each for drawn_then in by_day.values() for each in drawn_then])
    for day, drawn_then in by_day.items():
        grounds = LabelGrounds(
            day, context.iteration.id, context.recipe.rewards, panel, custom_id(context.recipe.rewards)
        )
        said = [next(opinions) for _ in drawn_then]
        counting = [
            {"reward_model": each if counts or each.value is None else Finding(None, NOT_ADMITTED)} for each in said
        ]
        labels, _ = label_samples(context.store, [each for each, _, _ in drawn_then], grounds, counting)
        for label, finding, (each, answer, number) in zip(labels, said, drawn_then, strict=True):
            ended = {} if _is_scored(each, answer) else {"final_reward": 0.0, "reason": "", "outcome": UNENDED}
            of_sample = {"sample": number, "finished": answer.finished, "completion_tokens": answer.tokens}
            rows.append({**label, **ended, **of_sample, "reward_model": finding.value})
    return pa.Table.from_pylist(rows, SAMPLES), panel


def _opinions(report: RewardModelReport | None, drawn: Sequence[tuple[RewardSample, Answer, int]]) -> Iterator[Finding]:
    if report is None or report.model is None:
        yield from (DOES_NOT_APPLY if report is None else Finding(None, UNTRAINED) for _ in drawn)
        return
    with open_scorer(report.model) as scorer:
        yield from scorer.score([AnsweredChat(s.messages, a.text, a.finished) for s, a, _ in drawn])


def _is_scored(sample: RewardSample, answer: Answer) -> bool:
    """A completion without its end is worth 0 where no reference can check it: scorers have not seen the like."""
    return answer.finished or sample.profile == "verified"


def _record(
    context: IterationContext,
    dataset: DatasetRef,
    drawn: Draw,
    panel: JudgeReport,
    reward_model: RewardModelReport | None,
) -> FreshSamples:
    table = pq.read_table(dataset.uri)
    rewards: Any = table["final_reward"].drop_null().to_numpy()
    by_prompt: Any = table.group_by("prompt").aggregate([("final_reward", "max")])
    return FreshSamples(
        iteration=context.iteration.id,
        dataset=dataset,
        model=context.iteration.champion,
        prompts=by_prompt.num_rows,
        refused=sum(not answers for answers in drawn.answers),
        drawn=drawn.asked,
        remembered=drawn.remembered,
        labelled=len(rewards),
        unlabelled=counts_of(table, "reason"),
        outcomes=counts_of(table, "outcome"),
        mean_reward=float(rewards.mean()) if len(rewards) else 0.0,
        best_reward=pc.mean(by_prompt["final_reward_max"]).as_py() or 0.0,
        histogram=histogram_of(rewards),
        judge_id=panel.id,
        reward_model=reward_model.model.digest if reward_model and reward_model.model else "",
        judge_tokens=panel.tokens,
        usd=panel.usd,
    )
