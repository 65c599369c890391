"""The Dagster instance of this project: a run carries its recipe, and a launch that cannot go well makes no run.

Named by `dagster.yaml`. Owns what happens before a run exists: the recipe is read and checked, the run's config names
it, and a command joins a run that is the same, stands beside one of another data root, or is refused: `dagster job
launch`, whose run a worker takes, and `dg launch`, `dagster job execute` and `dagster asset materialize`, which are
their run themselves. Everything after that is the coordinator's.
"""

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click
import dagster as dg

from assets.environment import ITERATION_TAG, environment
from assets.naming import LOOP
from jobs.coordinator import (
    FollowingRunCoordinator,
    RunFollower,
    daemon_is_alive,
    is_execute_command,
    is_launch_command,
    typed_command,
)
from jobs.dagster_internals import ACTIVE_RUN_STATUSES, deserialize_value, serialize_value
from jobs.launcher import launcher_of, reap_dead_runs
from jobs.models import OperatedModel
from jobs.run_contents import JOBS, RECIPE_TAG, carried, model_of, takes_a_recipe
from jobs.workers import DATA_ROOT_TAG
from pipeline.redaction import guard_output, redacted

WAIT = "PREFERENCE_TUNING_WAIT"
POLL_S = 1.0


def shut_to_others() -> None:
    """What this process and its children make is nobody's to write but its account's and its group's.

    Dagster's code server listens on a socket in the temporary folder and asks nobody for a name: where the umask is 0,
    as in some containers, every account of the machine could launch runs as this one.
    """
    os.umask(os.umask(0o077) | 0o002)


class RecipeInstance(dg.DagsterInstance):
    """An instance whose runs of this project name their recipe in their config and in two tags."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        guard_output()  # every process of Dagster opens the instance: commands, run workers, steps
        shut_to_others()
        command = click.get_current_context(silent=True)
        if not (is_launch_command(command) or is_execute_command(command)):
            return
        asked = command.params
        if not (asked.get("config") or asked.get("config_json")):
            # Seconds before the code is loaded and a run is made. A recipe in the run's config is read with that.
            job = asked.get("job_name") or asked.get("job") or ""
            model = model_of(job) if job.rpartition("__")[2] in JOBS else None
            if model is not None and job == model.names.word(LOOP) and not asked.get("op_selection"):
                _check_launch(model)

    @classmethod
    def config_schema(cls) -> dict[str, Any]:
        """No field of its own in `dagster.yaml`."""
        return {}

    @classmethod
    def config_defaults(cls, base_dir: str) -> Any:
        from dagster._core.instance.ref import InstanceRef

        return InstanceRef.config_defaults(base_dir)

    def create_run(self, **run: Any) -> dg.DagsterRun:
        """The run, with its recipe in its config; or, for `dagster job launch`, the same one that is in progress."""
        launched = is_launch_command(click.get_current_context(silent=True))
        if takes_a_recipe(run["remote_job_origin"]):
            run |= carried(run, run["step_keys_to_execute"] or [], launched)
        if launched and (same := self._in_progress(run)):
            if same.remote_job_origin is None:  # of a command that is its own worker: no coordinator takes it
                self._follow(same)
            return same
        return super().create_run(**run)

    def create_run_for_job(self, job_def: dg.JobDefinition, *arguments: Any, **options: Any) -> dg.DagsterRun:
        """The run of a command that is its own worker, with its recipe in its config; or, of the same one in progress,
        its end: the command follows it and exits as it does."""
        command = click.get_current_context(silent=True)
        code = options.get("job_code_origin")
        if not (is_execute_command(command) and takes_a_recipe(None, code)):
            return super().create_run_for_job(job_def, *arguments, **options)
        ops, assets = options.get("op_selection"), options.get("asset_selection")
        subset = job_def.get_subset(op_selection=ops, asset_selection=assets) if ops or assets else job_def
        run: dict[str, Any] = {
            "run_config": options.get("run_config"),
            "tags": options.get("tags"),
            "op_selection": ops,
            "asset_selection": assets or job_def.asset_layer.executable_asset_keys,
            "job_name": job_def.name,
            "remote_job_origin": None,
            "job_code_origin": code,
        }
        run |= carried(run, [node.name for node in subset.nodes], True)
        if same := self._in_progress(run):
            self._follow(same)
        options |= {"run_config": run["run_config"], "tags": run["tags"]}
        created = super().create_run_for_job(job_def, *arguments, **options)
        launcher_of(self).adopt(created, os.getpid(), shlex.join(typed_command()))
        return created

    def handle_new_event(self, event: dg.EventLogEntry, **options: Any) -> None:
        """Store the event without the secrets that its texts may quote: errors, logs, metadata."""
        super().handle_new_event(redacted_event(event), **options)

    def _in_progress(self, run: Mapping[str, Any]) -> dg.DagsterRun | None:
        """The run at work that this one would repeat. Raises ClickException where it would be in another one's way."""
        while others := self._others(run):
            if same := next((other for other in others if _is_same(other, run)), None):
                print(f"Run {same.run_id} of {same.job_name} is in progress already: following it", flush=True)
                return same
            if not environment().waits:
                raise click.ClickException(_refusal(others[0], run))
            print(f"Waiting for run {others[0].run_id} of {others[0].job_name} to end", flush=True)
            while any(other.run_id == others[0].run_id for other in self._others(run)):
                time.sleep(POLL_S)
        return None

    def _follow(self, run: dg.DagsterRun) -> NoReturn:
        """Stays with a run at work, and ends the command as the run ends."""
        coordinator = self.run_coordinator
        assert isinstance(coordinator, FollowingRunCoordinator), "dagster.yaml names it"
        follower = RunFollower(coordinator, self, None, run)
        follower.follow()
        raise click.exceptions.Exit(follower.conclude())

    def _others(self, run: Mapping[str, Any]) -> list[dg.DagsterRun]:
        """The runs of the same job on the same data root that somebody works on, or that a daemon will take."""
        reap_dead_runs(self)
        tags = {DATA_ROOT_TAG: run["tags"][DATA_ROOT_TAG]} if DATA_ROOT_TAG in run["tags"] else {}
        wanted = dg.RunsFilter(job_name=run["job_name"], tags=tags, statuses=ACTIVE_RUN_STATUSES)
        queue = daemon_is_alive(self)
        return [
            other
            for other in self.get_runs(wanted)
            if launcher_of(self).is_alive(other.run_id) or (queue and other.status is dg.DagsterRunStatus.QUEUED)
        ]


def redacted_event(event: dg.EventLogEntry) -> dg.EventLogEntry:
    """The event with each of its texts through `redacted`; itself where there is nothing to hide."""
    tree = json.loads(serialize_value(event))
    hidden = _without_secrets(tree)
    return event if hidden == tree else deserialize_value(json.dumps(hidden), dg.EventLogEntry)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_secrets(each) for key, each in value.items()}
    return value


def _check_launch(model: OperatedModel) -> None:
    """Raises ClickException with what speaks against a launch: model, disk, source, what the environment lacks, suites
    that cannot be read, packages that are not there."""
    from assets.preflight import later_faults, launch_faults  # heavier than the recipe, told without it
    from assets.resources import Deployment

    settings = Deployment(recipe_path=model.choice.recipe_path, overrides=model.choice.overrides)
    if faults := launch_faults(settings) or later_faults(settings):
        raise click.ClickException("\n".join([*faults, "Nothing was launched. To check again: pt validate"]))


def _is_same(other: dg.DagsterRun, run: Mapping[str, Any]) -> bool:
    """Whether the run at work does what this one would: same code, stages, config, recipe and, if named, iteration."""
    iteration = run["tags"].get(ITERATION_TAG)
    return (
        _is_same_code(other, run)
        and sorted(other.op_selection or []) == sorted(run["op_selection"] or [])
        and other.run_config == run["run_config"]
        and other.tags.get(RECIPE_TAG) == run["tags"].get(RECIPE_TAG)
        and iteration in (None, other.tags.get(ITERATION_TAG))
    )


def _is_same_code(other: dg.DagsterRun, run: Mapping[str, Any]) -> bool:
    """A command that is its own worker loads the code itself, and has no code server to compare."""
    if other.remote_job_origin is not None and run["remote_job_origin"] is not None:
        return other.remote_job_origin.repository_origin == run["remote_job_origin"].repository_origin
    return takes_a_recipe(other.remote_job_origin, other.job_code_origin)


def _refusal(other: dg.DagsterRun, run: Mapping[str, Any]) -> str:
    working, asked = _described(other.tags, other.op_selection), _described(run["tags"], run["op_selection"])
    where = f" on {run['tags'][DATA_ROOT_TAG]}" if DATA_ROOT_TAG in run["tags"] else ""
    return (
        f"Run {other.run_id} of {other.job_name} is at work{where} with {working}, and this launch asks for {asked}. "
        f"Launch again when it has ended, or let the command wait for that: {WAIT}=yes {shlex.join(typed_command())}"
    )


def _described(tags: Mapping[str, str], selection: Sequence[str] | None) -> str:
    recipe = f"recipe {tags[RECIPE_TAG]} and " if RECIPE_TAG in tags else ""
    iteration = f" of iteration {tags[ITERATION_TAG]}" if selection and ITERATION_TAG in tags else ""
    return f"{recipe}{' '.join(selection) if selection else 'all stages'}{iteration}"
