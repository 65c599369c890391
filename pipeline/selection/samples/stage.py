"""The stage: k completions of the champion for each of some logged prompts, each scored as a label is.

Prompts of real traffic do not repeat, so logged rows alone never make a pair: what can be compared is drawn here.
Owns the order of things: prompts that may be trained on, answers by the engine, the paid judges, one composite. A
completion that has not ended is worth 0 where no reference can check it: no scorer has seen the like, and a policy
would learn never to end.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.storage import DatasetRef, digest_file
from pipeline.recipe.samples import Samples
from pipeline.rewards.custom import custom_id
from pipeline.rewards.judge_stage import JudgeStageResult, PaidAccount, ask_judge
from pipeline.rewards.label import LabelGrounds, label_samples
from pipeline.rewards.records import BINS, DOES_NOT_APPLY, Finding
from pipeline.rewards.reward_model import AnsweredChat, RewardModelReport, open_scorer
from pipeline.rewards.reward_model.admission import counts_beside
from pipeline.rewards.samples import RewardSample
from pipeline.selection.pairing import LabelledRow, read_askable
from pipeline.selection.samples.draw import AskedModel, Draw, draw
from pipeline.selection.samples.governed import governed_rows
from pipeline.selection.samples.prompts import sampled_prompts
from pipeline.selection.samples.records import SAMPLES, UNENDED, FreshSamples
from pipeline.selection.trainable import HeldApart, trainable
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Answer, InferenceEngine
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import shared_lock

TABLE = "part-0.parquet"
UNTRAINED, NOT_ADMITTED = "reward_model_untrained", "reward_model_not_admitted"
"""Why the reward model says nothing of a completion."""


class Scorers(NamedTuple):
    """Who may be asked about a completion, and who must not."""

    judge: Endpoint | None
    lineage: Collection[str]
    """Digests of the policy and what it came from; no judge may have one of them."""
    reward_model: RewardModelReport | None = None
    """The iteration's own; None where nobody trained one."""


def sample(
    context: IterationContext,
    labels: DatasetRef,
    apart: Callable[[], HeldApart],
    governed: Callable[[], Collection[tuple[str, str]]],
    engine: Callable[[Samples], AbstractContextManager[InferenceEngine]],
    scorers: Scorers,
) -> FreshSamples:
    """Draw, score and publish the samples of an iteration once; none where the recipe has no `samples`.

    `governed`: (trace_id, observation_id) of the rows that may be trained on now. Raises ValueError for what cannot be
    asked or judged at all, RuntimeError for what passes: the journal keeps what was drawn.
    """
    store, iteration, section = context.store, context.iteration, context.recipe.samples

    def make() -> FreshSamples:
        if section is None:
            return FreshSamples(iteration=iteration.id)
        selection = context.recipe.selection
        rows = trainable(read_askable(labels), apart(), governed, selection.max_contamination).rows
        prompts = _governed(context, sampled_prompts(rows, section, selection.max_principal_share))
        began = time.monotonic()
        with engine(section) as opened, opened.open("champion", iteration.champion) as session:
            drawn = draw(AskedModel(iteration.champion, session, store, context.log), prompts, section)
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


def _governed(context: IterationContext, rows: Sequence[LabelledRow]) -> list[RewardSample]:
    """The governed rows behind the prompts, in their order."""
    wanted = {row[:2]: place for place, row in enumerate(rows)}
    by_place = {
        place: each
        for each in governed_rows(context, {row.trace_id for row in rows})
        if (place := wanted.get((each.trace_id, each.observation_id))) is not None
    }
    return [by_place[place] for place in sorted(by_place)]


def _scored(
    context: IterationContext, prompts: Sequence[RewardSample], drawn: Draw, scorers: Scorers
) -> tuple[pa.Table, JudgeStageResult]:
    """The table, a row for each completion, by day and then in the order of the prompts."""
    days = sorted({prompt.day for prompt in prompts})
    account = PaidAccount(f"{context.iteration.id}/{layout.SAMPLE_TABLE}", days)
    by_day = {day: _of_day(day, prompts, drawn) for day in days}
    judged = ((day, [[each for each, a, _ in drawn if _is_scored(each, a)]]) for day, drawn in by_day.items())
    panel = ask_judge(context, account, scorers.judge, scorers.lineage, judged)
    rows: list[dict[str, Any]] = []
    report = scorers.reward_model
    counts = report is not None and counts_beside(report, context.recipe.rewards.fresh)
    opinions = _opinions(report, [each for drawn_then in by_day.values() for each in drawn_then])
    for day, drawn_then in by_day.items():
        grounds = LabelGrounds(
            day, context.iteration.id, context.recipe.rewards, panel, custom_id(context.recipe.rewards)
        )
        said = [next(opinions) for _ in drawn_then]
        counting = [{"reward_model": finding if counts else _refused(finding)} for finding in said]
        labels, _ = label_samples(context.store, [each for each, _, _ in drawn_then], grounds, counting)
        for label, finding, (each, answer, number) in zip(labels, said, drawn_then, strict=True):
            ended = {} if _is_scored(each, answer) else {"final_reward": 0.0, "reason": "", "outcome": UNENDED}
            of_sample = {"sample": number, "finished": answer.finished, "completion_tokens": answer.tokens}
            rows.append({**label, **ended, **of_sample, "reward_model": finding.value})
    return pa.Table.from_pylist(rows, SAMPLES), panel


def _opinions(report: RewardModelReport | None, drawn: Sequence[tuple[RewardSample, Answer, int]]) -> Iterator[Finding]:
    """The reward model's word on each completion, in their order."""
    if report is None or report.model is None:
        yield from (DOES_NOT_APPLY if report is None else Finding(None, UNTRAINED) for _ in drawn)
        return
    with open_scorer(report.model) as scorer:
        yield from scorer.score([AnsweredChat(s.messages, a.text, a.finished) for s, a, _ in drawn])


def _refused(finding: Finding) -> Finding:
    """The word of a model that is not admitted, as it enters a reward: not at all."""
    return finding if finding.value is None else Finding(None, NOT_ADMITTED)


def _of_day(day: str, prompts: Sequence[RewardSample], drawn: Draw) -> list[tuple[RewardSample, Answer, int]]:
    return [
        (prompt.answered(answer.text), answer, number)
        for prompt, answers in zip(prompts, drawn.answers, strict=True)
        if prompt.day == day
        for number, answer in enumerate(answers)
    ]  # fmt: skip


def _is_scored(sample: RewardSample, answer: Answer) -> bool:
    return answer.finished or sample.profile == "verified"


def _record(
    context: IterationContext,
    dataset: DatasetRef,
    drawn: Draw,
    panel: JudgeStageResult,
    reward_model: RewardModelReport | None,
) -> FreshSamples:
    table = pq.read_table(dataset.uri)
    rewards: Any = table["final_reward"].drop_null().to_numpy()
    bins, _ = np.histogram(rewards, bins=BINS, range=(0.0, 1.0))
    by_prompt = _by_prompt(table)
    distinct = [len({text for text, _ in group}) / len(group) for group in by_prompt.values()]
    best = [max(values) for group in by_prompt.values() if (values := [r for _, r in group if r is not None])]
    return FreshSamples(
        iteration=context.iteration.id,
        dataset=dataset,
        model=context.iteration.champion,
        protocol=drawn.protocol,
        prompts=len(by_prompt),
        refused=sum(not answers for answers in drawn.answers),
        drawn=drawn.asked,
        remembered=drawn.remembered,
        completion_tokens=sum(table["completion_tokens"].to_pylist()),
        unended=table["finished"].to_pylist().count(False),
        distinct=fmean(distinct) if distinct else 0.0,
        labelled=len(rewards),
        unlabelled=_counts(table, "reason"),
        outcomes=_counts(table, "outcome"),
        mean_reward=float(rewards.mean()) if len(rewards) else 0.0,
        best_reward=fmean(best) if best else 0.0,
        histogram=tuple(int(n) for n in bins),
        judge_id=panel.judge_id,
        reward_model=reward_model.model.digest if reward_model and reward_model.model else "",
        judge_tokens=panel.tokens,
        usd=panel.usd,
    )


def _by_prompt(table: pa.Table) -> Mapping[str, list[tuple[str, float | None]]]:
    """The completions of each prompt, white space apart, with their rewards."""
    groups: dict[str, list[tuple[str, float | None]]] = {}
    columns = (table[name].to_pylist() for name in ("prompt", "completion", "final_reward"))
    for prompt, text, reward in zip(*columns, strict=True):
        groups.setdefault(prompt, []).append((" ".join(text.split()), reward))
    return groups


def _counts(table: pa.Table, column: str) -> dict[str, int]:
    return dict(sorted(Counter(value for value in table[column].to_pylist() if value).items()))
