"""When the loop starts by what happened (sensors) and by the clock (schedules, whose crons are the recipe's). Sensors
ask for a run, one for each event; a run that failed is asked for again under another run key. All are stopped until
somebody starts them, but for those of `jobs.gangs`. And whether an iteration is worth beginning: enough new labels, or
worse answers, and none that has just begun."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

from assets.environment import DATA_ROOT_TAG
from assets.naming import LABELLING, LOOP, ROLLOUT
from assets.records import LABELS, TRACES, begun_iterations
from assets.resources import Deployment
from assets.rollout import follow_rollout
from evals.drift import SIGNAL_COLUMNS, SignalChange, changes
from evals.outlook import outlook
from jobs.gangs import gang_held, gang_orphaned
from jobs.notices import ended_iterations, notices_due
from jobs.preference_tuning import DRIVE_FOR_TAG, UNFINISHED
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import DatasetRef, Store
from pipeline.recipe import Automation, Recipe
from pipeline.recipe.sources import DemoSource
from pipeline.rewards.records import LABELS as LABEL_TABLE
from pipeline.rollout.fold import read_state
from pipeline.rollout.grading import label_digest_of
from pipeline.traces.arrow import pc

Asked = dg.RunRequest | list[dg.RunRequest] | dg.SkipReason
ANSWER = ("trace_id", "observation_id")
SCORED = [*ANSWER, "day", *SIGNAL_COLUMNS]
NO_LABELS = pa.nulls(0, pa.string())
Target = Any
"""A job, or one of assets that is not resolved yet."""
EVENT_TAG = "preference_tuning/asked_for"
"""On a run that a sensor of the loop asked for: the event that it is for."""


def rollout_due(context: dg.SensorEvaluationContext, deployment: Deployment) -> Asked:
    """Looks at the active rollout, at a held one too, for it may do harm while a person decides; and asks for a run
    where its phase or weight became another, once for each, which shows that. What else it saw is why it skips.

    Where a look takes a judge, or simulated users, it asks for runs that look on for 15 minutes. How long the rollout
    dwelt is in its record, not here.
    """
    recipe, lines = deployment.recipe(), list[str]()
    state = read_state(deployment.store(), recipe.base_model.name)
    takes_long = recipe.gate_judge is not None or isinstance(recipe.traces.source, DemoSource)
    if context.instance.get_runs_count(dg.RunsFilter(job_name=ROLLOUT, statuses=UNFINISHED)):
        return dg.SkipReason("A look is under way.")
    tags = {"rollout": state.rollout}
    if takes_long and state.active and not state.waits_for_person:
        return dg.RunRequest(tags={**tags, DRIVE_FOR_TAG: "900"})
    if state.active:
        state = follow_rollout(deployment, lines.append, 0.0)
    event = f"{state.rollout}, event {state.requested_epoch}"
    is_shown = context.cursor == event if context.cursor or state.active else True  # the first tick shows nothing ended
    context.update_cursor(event)
    if not is_shown:
        return dg.RunRequest(run_key=event, tags=tags)
    where = f"{state.phase} at {state.canary_weight}%" if state.active else f"No rollout to look after, {state.phase}"
    return dg.SkipReason("; ".join(filter(None, [f"{where}: {state.reason}", *lines])))


def champion_changed(context: dg.SensorEvaluationContext, deployment: Deployment) -> Asked:
    """Asks for the next iteration at each change of the champion, also back to an earlier one: its traffic is what the
    iteration learns from."""
    champion, quiet_s = deployment.champion(), deployment.recipe().automation.quiet_s
    # A model may serve again after another one did: the moment since when it serves is part of the event.
    event = f"champion {champion.model.digest[:12]} since {champion.since or 'the beginning'}"
    if context.cursor in (None, event):  # the first tick only records
        context.update_cursor(event)
        return dg.SkipReason(f"The champion is {champion.model.digest[:12]}.")
    if reason := lately(context.instance, quiet_s) or collecting(deployment):
        return dg.SkipReason(reason)
    return ask(context, deployment, event, event, {})


def new_labels_came(context: dg.SensorEvaluationContext, deployment: Deployment) -> Asked:
    """Asks for an iteration when enough distinct labels came that no ended one had, for each set of them once.

    Labels come by `label_traces`. A day that is governed again brings the same ones, which do not count twice.
    """
    section = deployment.recipe().automation
    if isinstance(cursor := _labelled_since(context, deployment, section), dg.SkipReason):
        return cursor
    iteration = deployment.latest()
    new = new_labels(deployment, iteration)
    if new < section.min_new_labels:
        context.update_cursor(cursor)
        return dg.SkipReason(f"{new:,} new labels; {section.min_new_labels:,} begin an iteration.")
    if reason := collecting(deployment):
        return dg.SkipReason(reason)
    return ask(context, deployment, f"new_labels of iteration {iteration.id}", cursor, {"new_labels": str(new)})


def feedback_drift(context: dg.SensorEvaluationContext, deployment: Deployment) -> Asked:
    """Asks for an iteration when the champion's answers became worse: of the labels that no ended iteration had, fewer
    are liked by users, or are good to the judge, than of the last iteration of this champion that ended, proven.

    The proof is that of the rollout's harm test, so looking often finds no fall that is not there more often than
    `rollout.alpha` says.
    """
    section = deployment.recipe().automation
    if isinstance(cursor := _labelled_since(context, deployment, section), dg.SkipReason):
        return cursor
    iteration = deployment.latest()
    quality = champion_quality(deployment, iteration, section)
    if not quality.fell:
        context.update_cursor(cursor)
        return dg.SkipReason(quality.line())
    context.log.info(quality.line())
    fell = ", ".join(each.signal for each in quality.signals if each.fell)
    return ask(context, deployment, f"feedback_drift of iteration {iteration.id}", cursor, {"feedback_drift": fell})


def ask(
    context: dg.SensorEvaluationContext, deployment: Deployment, event: str, cursor: str, tags: dict[str, str]
) -> dg.RunRequest | dg.SkipReason:
    """A run of the loop for an event. The cursor moves when a run for it has succeeded, or a person cancelled one; a
    run that failed is asked for again, with the number of the attempt in its key."""
    mine = {EVENT_TAG: event, DATA_ROOT_TAG: str(deployment.store().root)}
    runs = context.instance.get_runs(dg.RunsFilter(job_name=LOOP, tags=mine))
    if at_work := [run for run in runs if not run.is_finished]:
        return dg.SkipReason(f"Run {at_work[0].run_id[:8]} is under way for this.")
    if over := [run for run in runs if run.status is not dg.DagsterRunStatus.FAILURE]:
        context.update_cursor(cursor)
        return dg.SkipReason(f"Run {over[0].run_id[:8]} was made for this: {over[0].status.value}.")
    return dg.RunRequest(run_key=f"{event}, attempt {len(runs) + 1}", tags={EVENT_TAG: event, **tags})


def sensors_of(settings: Deployment, jobs: dict[str, Target]) -> list[dg.SensorDefinition]:
    """Of one model. `jobs`: by name. The recipe is read at each tick: the process of the code lives for days."""

    def sensor(
        name: str, job: str | None, every_s: int, evaluate: Callable[[dg.SensorEvaluationContext, Deployment], Any]
    ) -> dg.SensorDefinition:
        is_on = evaluate is gang_held  # it ends work, and begins none
        return dg.SensorDefinition(
            name=name,
            evaluation_fn=lambda context: evaluate(context, settings.fresh()),
            job=jobs[job] if job else None,
            minimum_interval_seconds=every_s,
            description=inspect.getdoc(evaluate),
            default_status=dg.DefaultSensorStatus.RUNNING if is_on else dg.DefaultSensorStatus.STOPPED,
        )

    orphaned = dg.run_status_sensor(
        run_status=dg.DagsterRunStatus.CANCELED,
        name="gang_orphaned",
        monitored_jobs=[jobs[LOOP]],
        request_job=jobs["delete_orphaned_gang"],
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=60,
        description=inspect.getdoc(gang_orphaned),
    )
    return [
        sensor("champion_changed", LOOP, 300, champion_changed),
        sensor("new_labels", LOOP, 300, new_labels_came),
        sensor("feedback_drift", LOOP, 300, feedback_drift),
        sensor("rollout_due", ROLLOUT, 60, rollout_due),
        sensor("notices_due", None, 60, notices_due),
        orphaned(lambda context: gang_orphaned(context, settings.fresh())),
        sensor("gang_held", "delete_orphaned_gang", 300, gang_held),
    ]


def _labelled_since(
    context: dg.SensorEvaluationContext, deployment: Deployment, section: Automation
) -> str | dg.SkipReason:
    """The cursor after the newest labels, or why they are not looked at now."""
    newest = context.instance.fetch_materializations(deployment.key("reward_labels"), limit=1).records
    if not newest:
        return dg.SkipReason("There are no labels yet: launch label_traces, or start the schedule hourly_labels.")
    if context.cursor == str(newest[0].storage_id):
        return dg.SkipReason("No labels were made since the last count.")
    if reason := lately(context.instance, section.quiet_s):
        return dg.SkipReason(reason)
    return str(newest[0].storage_id)


def schedules_of(settings: Deployment, section: Automation, jobs: dict[str, Target]) -> list[dg.ScheduleDefinition]:
    """Of one model. `jobs`: by name."""

    def by_clock(name: str, job: str, cron: str, description: str) -> dg.ScheduleDefinition:
        def ask(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
            reason = ""
            if job == LOOP:
                with suppress(ValueError):  # a mistake in the recipe is told by the run's first step
                    reason = lately(context.instance, section.quiet_s) or collecting(settings.fresh())
            return dg.SkipReason(reason) if reason else dg.RunRequest()

        return dg.ScheduleDefinition(
            name=name,
            job=jobs[job],
            cron_schedule=cron,
            execution_timezone=str(section.timezone),
            description=description,
            execution_fn=ask,
        )

    return [
        by_clock(
            "nightly",
            LOOP,
            section.iteration_cron,
            "An iteration over the traces of the day before, when there are new ones, none has just begun and its gate "
            "could show the gain that is expected.",
        ),
        by_clock(
            "hourly_labels",
            LABELLING,
            section.labelling_cron,
            "Governs and labels what is new, which the sensor new_labels counts. Nothing is trained.",
        ),
        by_clock("weekly", "lake_upkeep", section.upkeep_cron, "Retention and the table's upkeep."),
    ]


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


def new_labels(deployment: Deployment, newest: Iteration) -> int:
    """How many distinct labels it has that no ended iteration had. Raises ValueError where it has none yet."""
    store = deployment.store()
    before = [LABELS.find(store, id) for id in ended_iterations(store)]
    seen = pa.concat_arrays([NO_LABELS, *(label_ids(each.dataset) for each in before if each is not None)])
    labels = label_ids(LABELS.read(store, newest.id).dataset)
    return len(labels) - (pc.sum(pc.is_in(labels, value_set=seen)).as_py() or 0)


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
    ids = [id for id in begun_iterations(store) if store.path(layout.iteration(id, layout.LABELS)).is_file()]
    return [governed.iteration for id in ids if (governed := TRACES.find(store, id)) is not None]


def _is_alike(store: Store, one: Iteration, other: Iteration) -> bool:
    """Whether the labels of both are of one champion's answers, and made by the same rules."""
    first, second = (store.read(each.path(layout.RECIPE), Recipe) for each in (one, other))
    rules = [None if recipe is None else label_digest_of(recipe.rewards) for recipe in (first, second)]
    return one.champion.digest == other.champion.digest and rules[0] == rules[1]
