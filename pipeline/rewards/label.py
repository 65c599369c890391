"""Labelling: `final_reward` with its provenance for every governed trace of an iteration, published in one step. Row
groups are checked and composed wherever the engine runs them; what is known is not computed again."""

import json
import shutil
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.storage import DatasetRef, Store, digest_dir, locked
from pipeline.recipe.rewards import Rewards
from pipeline.rewards.composite import Reward, compose, measure, verified
from pipeline.rewards.custom import (
    AGAIN,
    CustomScore,
    CustomScorer,
    CustomTask,
    check_function,
    custom_id,
    custom_key,
    wants_custom,
)
from pipeline.rewards.feedback import settle_window
from pipeline.rewards.findings import FindingLine, Source, journal, key_of, known
from pipeline.rewards.judge import Endpoint
from pipeline.rewards.judge_stage import audits, judge_key, judge_traces, wants_judge
from pipeline.rewards.records import DOES_NOT_APPLY, LABELS, LOGGED, Finding, JudgeReport, RewardLabels
from pipeline.rewards.samples import COLUMNS, UNKNOWN, RewardSample, samples, scores_of
from pipeline.rewards.summary import LabelCounts, summarise
from pipeline.rewards.verifiers import VERSION, Grade, Grader, Outcome
from pipeline.traces.context import IterationContext
from pipeline.traces.engine import open_engine
from pipeline.traces.erased import forgotten, held_lock
from pipeline.traces.lake import LakeConfig, open_lake
from pipeline.traces.lake.files import read_row_group, row_groups
from pipeline.traces.materialize import complete, window_of
from pipeline.traces.records import Scope
from pipeline.traces.scope import where

BATCH = 500
"""Checks between two writes to the journal."""


class LabelGrounds(NamedTuple):
    """What decides the labels of one day, apart from the samples. `custom_id`: of the user's own function."""

    day: str
    iteration: str
    settings: Rewards
    panel: JudgeReport
    custom_id: str


class LabelTask(NamedTuple):
    """One row group to label, and all that it takes: it may be labelled on another machine."""

    grounds: LabelGrounds
    root: str
    lake: LakeConfig
    uri: str
    row_group: int
    scope: Scope
    opinions: Path
    target: Path


def label_traces(context: IterationContext, endpoint: Endpoint | None, lineage: Collection[str]) -> RewardLabels:
    """Label every governed trace of the iteration once and publish the table.

    `lineage`: digests of the policy and what it came from; the judge must be none of them. Raises ValueError when the
    dataset cannot be read, or a judge is wanted and has no endpoint, or is refused, or the recipe's own function can't
    be called.
    """
    store, iteration, settings = context.store, context.iteration, context.recipe.rewards

    def make() -> RewardLabels:
        check_function(settings)
        forgotten(store)  # raises where somebody would not be recognised
        folder = iteration.path(layout.LABEL_TABLE)
        # Of an attempt that was killed before its record.
        for name in (layout.LABEL_TABLE, layout.OPINIONS):
            shutil.rmtree(store.path(iteration.path(name)), ignore_errors=True)
        with store.staged(folder) as staging, open_lake(context.lake) as lake:
            window = window_of(store, lake, iteration.dataset)
            opinions = settle_window(context, lake, window)
            panel = judge_traces(context, lake, window, opinions, endpoint, lineage)
            grounds = LabelGrounds("", iteration.id, settings, panel, custom_id(settings))
            parts = [
                LabelTask(
                    grounds=grounds._replace(day=day),
                    root=str(store.root),
                    lake=context.lake,
                    uri=uri,
                    row_group=number,
                    scope=window.scope,
                    opinions=opinions,
                    target=staging,
                )
                for day in window.days
                for uri in lake.files([day], window.snapshot)
                for number in range(row_groups(context.lake, uri))
            ]
            done: list[LabelCounts] = []
            with open_engine(context.recipe.compute, context.ray) as engine:
                for _, labelled in zip(parts, engine.map(label_part, parts, context.log), strict=True):
                    done.append(labelled)
                    rows = sum(part.rows for part in done)
                    context.log(f"labelled {rows:,} traces, {len(done)} of {len(parts)} parts")
            if not parts:  # a table without rows is a table too
                pq.write_table(LABELS.empty_table(), staging / "empty.parquet")
            complete(iteration.dataset, sum(part.rows for part in done))
            for torn in staging.glob(".*"):  # of a worker that was lost
                torn.unlink()
        path = store.path(folder)
        dataset = DatasetRef(uri=str(path), rows=iteration.dataset.rows, digest=digest_dir(path))
        counts = LabelCounts(*(sum(column) for column in zip(*done, strict=True))) if done else LabelCounts(0, 0, 0)
        return summarise(context, dataset, panel, counts)

    # Of two runs at once the second meets the labels of the first.
    with locked(store.path(iteration.path(layout.LABELLING_LOCK))):
        return store.once(iteration.path(layout.LABELS), RewardLabels, make)


def label_part(part: LabelTask) -> LabelCounts:
    """Check and compose one row group, and write it under the part's target. May run any number of times."""
    store, (day, _, settings, _, _) = Store(part.root), part.grounds
    with held_lock(store):  # no user is forgotten while another machine still writes
        rows = read_row_group(part.lake, part.uri, part.row_group, COLUMNS, where(part.scope))
        day_opinions = scores_of(part.opinions / f"{day}.parquet", rows["trace_id"].to_pylist())
        labels, counts = label_samples(store, samples(rows.to_pylist(), day_opinions, settings), part.grounds)
        name = f"{day}-{key_of(PurePath(part.uri).name, str(part.row_group))}.parquet"
        staged = part.target / f".{name}.{uuid.uuid4().hex}"
        pq.write_table(pa.Table.from_pylist(labels, schema=LABELS), staged)
        staged.replace(part.target / name)
    return counts


def label_samples(
    store: Store, held: Sequence[RewardSample], part: LabelGrounds, others: Sequence[Mapping[str, Finding]] = ()
) -> tuple[list[dict[str, Any]], LabelCounts]:
    """A row of LABELS for each sample of a day; what the journal has no verdict on is checked here.

    `others`: for each sample what scorers that keep no journal say of it.
    """
    keys = [_keys(sample, part) for sample in held]
    lines = known(store, part.day, {key for each in keys for key in each.values()})
    todo: defaultdict[Source, dict[str, RewardSample]] = defaultdict(dict)
    for sample, each in zip(held, keys, strict=True):
        for source, key in each.items():
            if source != "judge" and (key not in lines or lines[key].again):
                todo[source][key] = sample
    _check(store, part, list(todo["verifier"].items()), lines)
    _score(store, part, todo["custom"], lines)
    labels = [
        _label(sample, {source: lines[key] for source, key in each.items() if key in lines}, part, findings)
        for sample, each, findings in zip(held, keys, others or [{}] * len(held), strict=True)
    ]
    checked, wanted = sum(map(len, todo.values())), sum(len(each.keys() - {"judge"}) for each in keys)
    return labels, LabelCounts(len(held), checked, wanted - checked)


def _keys(sample: RewardSample, part: LabelGrounds) -> dict[Source, str]:
    """Of the findings that a sample's label may rest on, by who is asked."""
    keys: dict[Source, str] = {}
    if sample.unscored:
        return keys
    if wants_judge(sample, part.settings) or audits(sample, part.settings):
        keys["judge"] = judge_key(part.panel.id, sample)
    if wants_custom(sample.profile, part.settings):
        keys["custom"] = custom_key(part.custom_id, sample.trace_id, sample.observation_id, _custom_task(sample))
    if sample.reference:
        place = (sample.trace_id, sample.observation_id)
        keys["verifier"] = key_of("verifier", VERSION, *place, sample.kind, sample.reference, sample.completion)
    return keys


def _check(
    store: Store, part: LabelGrounds, todo: Sequence[tuple[str, RewardSample]], lines: dict[str, FindingLine]
) -> None:
    """Have the verifier check these, by key; its verdicts go to `lines` and to the journal."""
    limits = part.settings.verifier
    writer = journal(store, part.day)
    with closing(Grader(limits)) as check:
        for start in range(0, len(todo), BATCH):
            batch = todo[start : start + BATCH]
            grades = iter(check([sample.task for _, sample in batch if sample.kind != UNKNOWN]))
            checked: list[FindingLine] = []
            for key, sample in batch:
                grade = Grade(Outcome.error, "") if sample.kind == UNKNOWN else next(grades)
                again = grade.outcome in (Outcome.timeout, Outcome.error)
                verdict = {"outcome": grade.outcome.value, "answer": grade.answer, "again": again}
                checked.append(sample.line(key, "verifier", part.iteration, **verdict))
            writer.add(*checked)
            lines.update((line.key, line) for line in checked)


def _score(store: Store, part: LabelGrounds, todo: Mapping[str, RewardSample], lines: dict[str, FindingLine]) -> None:
    """The same for the user's own function, a line for each finding as soon as it is known."""
    if not todo or part.settings.custom is None:
        return
    of_task: defaultdict[CustomTask, list[str]] = defaultdict(list)
    for key, sample in todo.items():
        of_task[_custom_task(sample)].append(key)
    writer = journal(store, part.day)

    def note(task: CustomTask, score: CustomScore) -> None:
        said = {**score.finding._asdict(), "answer": score.detail, "again": score.finding.reason in AGAIN}
        for key in of_task[task]:
            lines[key] = todo[key].line(key, "custom", part.iteration, **said)
            writer.add(lines[key])

    with closing(CustomScorer(part.settings.custom)) as scorer:
        scorer(list(of_task), note)


def _custom_task(sample: RewardSample) -> CustomTask:
    return CustomTask(sample.prompt, sample.completion, sample.reference, sample.metadata)


def _label(
    sample: RewardSample, lines: Mapping[Source, FindingLine], part: LabelGrounds, others: Mapping[str, Finding]
) -> dict[str, Any]:
    verdict, custom = lines.get("verifier"), lines.get("custom")
    paid = {source: line for source, line in lines.items() if source != "verifier"}
    findings = {"feedback": sample.feedback, **others}
    if sample.given is not None:
        findings["given"] = sample.given
    if verdict is not None:
        grade = Grade(Outcome(verdict.outcome), verdict.answer)
        findings |= verified(sample.task, grade, part.settings, sample.latency_s)
    else:
        findings |= measure(sample.completion, None, sample.latency_s, part.settings.rules)
    if wants_judge(sample, part.settings):
        findings["judge"] = Finding(None, part.panel.unasked)
    findings |= {source: Finding(line.value, line.reason) for source, line in paid.items()}
    reward = compose(findings, sample.profile, part.settings)
    if sample.unscored:
        reward = Reward(None, sample.unscored, sample.profile, {}, {})
    return {
        **{name: getattr(sample, name) for name in ("trace_id", "observation_id", "day", "timestamp", "tenant_id")},
        **{name: getattr(sample, name) for name in ("consent", "prompt", "completion", "reference", "origin")},
        "user_id": sample.principal,
        "verifier": sample.kind if verdict else None,
        "outcome": verdict.outcome if verdict else sample.unscored or "no_reference",
        "answer": verdict.answer if verdict else None,
        **{name: reward.findings.get(name, DOES_NOT_APPLY).value for name in LOGGED},
        "final_reward": reward.final_reward,
        "reason": reward.reason,
        "profile": reward.profile,
        "weights": json.dumps(reward.weights),
        "missing": json.dumps(reward.missing),
        "verifier_version": VERSION if verdict else None,
        "judge_id": part.panel.id if "judge" in lines else None,
        "custom_id": part.custom_id if custom else None,
        "custom_detail": custom.answer or None if custom else None,
        "tokens": sum(line.tokens for line in paid.values()),
        "usd": sum(line.usd for line in paid.values()),
    }
