"""Whether an iteration is worth beginning: enough labels that none had before, and none that has just begun.

Owns the count, the back-off and the quiet time after a start. Refuses to ask for a run: sensors and schedules do.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

from assets.naming import LOOP, DefinitionNames
from assets.outcome import IterationOutcome
from assets.records import LABELS
from assets.resources import Deployment
from jobs.preference_tuning import UNFINISHED
from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.recipe import Automation
from pipeline.storage import DatasetRef, Store
from pipeline.traces.arrow import pc

NO_LABELS = pa.array([], pa.string())
Target = Any
"""A job, or one of assets that is not resolved yet."""
FRUITLESS = ("refused", "stopped", "not trained")
"""Endings that left no candidate."""


class EndedIteration(NamedTuple):
    """`at`: when its outcome was written, in nanoseconds since 1970."""

    at: int
    id: str
    outcome: IterationOutcome


class NewLabels(NamedTuple):
    """Distinct labels of the newest iteration that none of the ended ones had, and how many are waited for."""

    new: int
    wanted: int
    fruitless: tuple[str, ...]
    """How the newest iterations ended, back to the last one with a candidate; the newest first."""

    def line(self) -> str:
        """For a person: what is waited for, and where it backs off, why."""
        text = f"{self.new:,} new labels; {self.wanted:,} begin an iteration."
        if self.fruitless:
            text += f" The last {len(self.fruitless)} ended without a candidate ({', '.join(self.fruitless)})."
        return text


def lately(instance: dg.DagsterInstance, names: DefinitionNames, quiet_s: float) -> str:
    """Why no iteration is begun now: a run that may train is under way, or began within `quiet_s`; "" without one."""
    job, training = names.word(LOOP), names.word("policy_checkpoint")
    begun = dg.RunsFilter(job_name=job, created_after=datetime.now(UTC) - timedelta(seconds=quiet_s))
    runs = [*instance.get_runs(dg.RunsFilter(job_name=job, statuses=UNFINISHED)), *instance.get_runs(begun)]
    for run in runs:
        if run.step_keys_to_execute is None or training in run.step_keys_to_execute:
            what = "began less than" if run.is_finished else "is under way, or began less than"
            return f"Run {run.run_id[:8]} of {job} {what} {quiet_s:,.0f} s ago: one is enough."
    return ""


def ended_iterations(store: Store) -> list[EndedIteration]:
    """Every iteration that has ended, in the order of their ends."""
    return sorted(_ended(store), key=lambda each: each.at)


def new_labels(deployment: Deployment, newest: Iteration, section: Automation) -> NewLabels:
    """Raises ValueError where the newest iteration has no labels yet."""
    store = deployment.store()
    ended = ended_iterations(store)
    before = [LABELS.find(store, each.id) for each in ended]
    seen = pa.concat_arrays([NO_LABELS, *(label_ids(each.dataset) for each in before if each is not None)])
    labels = label_ids(LABELS.read(store, newest.id).dataset)
    count = len(labels) - (pc.sum(pc.is_in(labels, value_set=seen)).as_py() or 0)
    fruitless: list[str] = []
    for each in reversed(ended):
        if each.outcome.ending not in FRUITLESS:
            break
        fruitless.append(each.outcome.ending)
    doublings = max(0, len(fruitless) - section.patience + 1)
    return NewLabels(count, section.min_new_labels * 2**doublings, tuple(fruitless))


def label_ids(labels: DatasetRef) -> pa.StringArray:
    """Of what may be trained on, each once: labelled, and with consent when it was. Empty where an erasure or retention
    took the table."""
    if not Path(labels.uri).is_dir():
        return NO_LABELS
    table = pq.read_table(labels.uri, columns=["trace_id", "observation_id", "consent", "final_reward"])
    usable = table.filter(pc.and_(pc.fill_null(table["consent"], False), pc.is_valid(table["final_reward"])))
    observations = pc.fill_null(usable["observation_id"], "")
    return pc.unique(pc.binary_join_element_wise(usable["trace_id"], observations, "\n"))


def _ended(store: Store) -> Iterator[EndedIteration]:
    for path in store.path(layout.ITERATIONS).glob(f"*/{layout.OUTCOME}"):
        id = path.parent.name
        if (ended := store.read(layout.iteration(id, layout.OUTCOME), IterationOutcome)) is not None:
            yield EndedIteration(path.stat().st_mtime_ns, id, ended)
