"""Whether an iteration is worth beginning: enough new labels, or worse answers, and none that has just begun."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

from assets.naming import LOOP
from assets.records import LABELS, TRACES, IterationOutcome, iteration_ids
from assets.resources import Deployment
from evals.outlook import outlook
from jobs.preference_tuning import UNFINISHED
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import DatasetRef, Store
from pipeline.recipe import Automation, Recipe
from pipeline.rewards.records import LABELS as LABEL_TABLE
from pipeline.rollout.drift import SIGNAL_COLUMNS, SignalChange, changes
from pipeline.rollout.fold import read_state
from pipeline.rollout.grading import label_digest_of
from pipeline.traces.arrow import pc

ANSWER = ("trace_id", "observation_id")
SCORED = [*ANSWER, "day", *SIGNAL_COLUMNS]
NO_LABELS = pa.nulls(0, pa.string())
Target = Any
"""A job, or one of assets that is not resolved yet."""


class NewLabels(NamedTuple):
    """Distinct labels of the newest iteration that none of the ended ones had, and how many are waited for."""

    new: int
    wanted: int

    def line(self) -> str:
        return f"{self.new:,} new labels; {self.wanted:,} begin an iteration."


def lately(instance: dg.DagsterInstance, quiet_s: float) -> str:
    """Why no iteration is begun now: a run that may train is under way, or began within `quiet_s`; "" without one."""
    begun = dg.RunsFilter(job_name=LOOP, created_after=datetime.now(UTC) - timedelta(seconds=quiet_s))
    runs = [*instance.get_runs(dg.RunsFilter(job_name=LOOP, statuses=UNFINISHED)), *instance.get_runs(begun)]
    for run in runs:
        steps = run.step_keys_to_execute
        if steps is None or any(step.endswith("policy_checkpoint") for step in steps):
            what = "began less than" if run.is_finished else "is under way, or began less than"
            return f"Run {run.run_id[:8]} of {LOOP} {what} {quiet_s:,.0f} s ago: one is enough."
    return ""


def collecting(deployment: Deployment) -> str:
    """Why the night collects: the gate after it could hardly show the gain that is expected; "" where it may."""
    recipe, store = deployment.recipe(), deployment.store()
    past, now = read_state(store, recipe.base_model.name).past.champion, datetime.now(UTC)
    champion = "" if past is None else past.model.digest
    return outlook(store, recipe.evaluation, recipe.base_model.name, champion, now).collects(now)


def ended_iterations(store: Store) -> dict[str, IterationOutcome]:
    """Every iteration that has ended, by its id, in the order of their ends."""
    ids = [path.parent.name for path in store.path(layout.ITERATIONS).glob(f"*/{layout.OUTCOME}")]
    outcomes = {id: store.read(layout.iteration(id, layout.OUTCOME), IterationOutcome) for id in ids}
    ended = {id: each for id, each in outcomes.items() if each is not None}
    return dict(sorted(ended.items(), key=lambda each: each[1].at))


class ChampionQuality(NamedTuple):
    """How the champion's answers are scored since the last iteration of it that ended."""

    against: str
    """Id of that iteration; "" where there is none."""
    signals: tuple[SignalChange, ...]
    least: int
    """Scored answers below which nothing is tested."""

    @property
    def fell(self) -> bool:
        return any(each.fell for each in self.signals)

    def line(self) -> str:
        """For a person."""
        if not self.against:
            return "No iteration of this champion and these rewards has ended: there is nothing to compare with."
        what = "; ".join(each.line() for each in self.signals)
        verdict = "proven to have fallen" if self.fell else f"no fall is proven ({self.least:,} answers at least)"
        return f"Against iteration {self.against}, {what}: {verdict}."


def new_labels(deployment: Deployment, newest: Iteration, section: Automation) -> NewLabels:
    """Raises ValueError where the newest iteration has no labels yet."""
    store = deployment.store()
    before = [LABELS.find(store, id) for id in ended_iterations(store)]
    seen = pa.concat_arrays([NO_LABELS, *(label_ids(each.dataset) for each in before if each is not None)])
    labels = label_ids(LABELS.read(store, newest.id).dataset)
    count = len(labels) - (pc.sum(pc.is_in(labels, value_set=seen)).as_py() or 0)
    return NewLabels(count, section.min_new_labels)


def champion_quality(deployment: Deployment, newest: Iteration, section: Automation) -> ChampionQuality:
    """Scores of the labels that no ended iteration had, against those of the last ended iteration of the same champion
    and the same rewards. Labels of days that have left the newest table count by the table that had them last."""
    store, rule = deployment.store(), deployment.recipe().rollout
    ended, least = ended_iterations(store), section.min_drift_labels
    alike = [each for each in _labelled(store) if _is_alike(store, each, newest)]
    last = next((each for id in reversed(ended) for each in alike if each.id == id), None)
    if last is None:
        return ChampionQuality("", (), least)
    since = [newest, *(each for each in reversed(alike) if each.id not in ended and each.id != newest.id)]
    before = _scores([LABELS.read(store, last.id).dataset])
    seen = [LABELS.read(store, each.id).dataset for each in alike if each.id in ended]
    later = _scores([LABELS.read(store, each.id).dataset for each in since])
    unseen = pc.invert(pc.is_in(_ids(later), value_set=pa.concat_arrays([NO_LABELS, _ids(_scores(seen))])))
    signals = changes(before, later.filter(unseen), rule, least)
    return ChampionQuality(last.id, tuple(signals), least)


def label_ids(labels: DatasetRef) -> pa.StringArray:
    """Of what may be trained on, each once: labelled, and with consent when it was. Empty where an erasure or retention
    took the table."""
    if not Path(labels.uri).is_dir():
        return NO_LABELS
    table = pq.read_table(labels.uri, columns=[*ANSWER, "consent", "final_reward"])
    return pc.unique(
        _ids(table.filter(pc.and_(pc.fill_null(table["consent"], False), pc.is_valid(table["final_reward"]))))
    )


def _ids(labels: pa.Table) -> pa.Array:
    """Of each row's answer."""
    joined = pc.binary_join_element_wise(labels["trace_id"], pc.fill_null(labels["observation_id"], ""), "\n")
    return joined.combine_chunks()


def _scores(tables: Sequence[DatasetRef]) -> pa.Table:
    """One row an answer: of a day that several tables have, those of the first. What an erasure or retention took is
    absent."""
    taken: set[str] = set()
    parts = [LABEL_TABLE.empty_table().select(SCORED)]
    for each in tables:
        if not Path(each.uri).is_dir():
            continue
        labels = pq.read_table(each.uri, columns=SCORED)
        parts.append(labels.filter(pc.invert(pc.is_in(labels["day"], value_set=pa.array(sorted(taken), pa.string())))))
        taken.update(labels["day"].unique().to_pylist())
    return pa.concat_tables(parts)


def _labelled(store: Store) -> list[Iteration]:
    """Every iteration that has labels, the oldest first."""
    ids = [id for id in iteration_ids(store) if store.path(layout.iteration(id, layout.LABELS)).is_file()]
    return [governed.iteration for id in ids if (governed := TRACES.find(store, id)) is not None]


def _is_alike(store: Store, one: Iteration, other: Iteration) -> bool:
    """Whether the labels of both are of one champion's answers, and made by the same rules."""
    first, second = (store.read(each.path(layout.RECIPE), Recipe) for each in (one, other))
    rules = [None if recipe is None else label_digest_of(recipe.rewards) for recipe in (first, second)]
    return one.champion.digest == other.champion.digest and rules[0] == rules[1]
