"""A finished stage again: `pt retry STAGE [--iteration ID] [--yes] [--no-launch]`.

Lists what the stage and those below it left in the iteration (the newest one, unless it is named), asks, removes it
and launches the job from there. Labels and samples are found again in their journals, so nothing is paid for twice.
Exit codes: the launch's own; with --no-launch 0; 1 when the answer was no; 2 when it could not be done (it says why).
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from assets.environment import DATA_ROOT_TAG
from assets.naming import LOOP, launch_command
from assets.records import RECORDS, VERSION, launch_from
from assets.resources import Deployment, deployment
from jobs.launcher import DetachedRunLauncher
from jobs.recipe_choice import typed
from pipeline.core import audit, layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.rollout.fold import read_log
from pipeline.traces.erased import exclusive_lock

BESIDE = {
    "traces": (layout.RECIPE,),
    "reward_labels": (layout.LABEL_TABLE, layout.OPINIONS),
    "reward_model": (layout.REWARD_MODEL_FOLDER,),
    "samples": (layout.SAMPLE_TABLE,),
    "preference_dataset": (layout.PREFERENCE_TABLES,),
    "training_plan": (layout.TRAINING_ROWS, layout.HELD_OUT_ROWS),
    "policy_checkpoint": (layout.TRAINING,),
    "eval_report": (layout.EVIDENCE,),
    "canary": (layout.OUTCOME, layout.PAGE),
}
"""What a stage leaves besides its record, under the iteration. Of `training` all but the plan is the trainer's."""
STAGES = (*RECORDS, "canary")


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    settings = deployment()
    try:
        iteration = settings.iteration(asked.iteration) if asked.iteration else settings.latest()
        _check_idle(settings, iteration)
        check_rollout(settings.store(), iteration, asked.stage)
        settings.refuse_another_recipe(iteration)
    except (ValueError, OSError) as error:
        print(f"retry: {error}", file=sys.stderr)
        return 2
    store = settings.store()
    names = list(leavings(store, iteration, asked.stage))
    print("\n".join(_listed(store, iteration, names)), flush=True)
    if names and not asked.yes and not _agreed():
        return 1
    remove(store, iteration, asked.stage, names)
    command = launch_from(store, iteration.id, asked.stage, settings.recipe().key_prefix)
    print(typed(command), flush=True)
    if asked.no_launch:
        return 0
    dagster = Path(sys.executable).parent / "dagster"
    os.execv(dagster, shlex.split(command))


def leavings(store: Store, iteration: Iteration, stage: str) -> Iterator[str]:
    """Names in the store of what the stage and all below it left, the last stage first: a kill leaves no gap."""
    for each in reversed(STAGES[STAGES.index(stage) :]):
        record = [RECORDS[each].name] if each in RECORDS else []
        for name in (*record, *BESIDE.get(each, ())):
            if name == layout.TRAINING:
                kept = {layout.PLAN, layout.TRAINING_ROWS, layout.HELD_OUT_ROWS, layout.RESULT}
                inside = sorted(f"{name}/{path.name}" for path in store.path(iteration.path(name)).glob("*"))
                yield from (iteration.path(each) for each in inside if each not in kept)
            elif store.path(iteration.path(name)).exists():
                yield iteration.path(name)


def remove(store: Store, iteration: Iteration, stage: str, names: Sequence[str]) -> None:
    """Delete them, in their order, while no stage publishes; the audit log says that it was done."""
    if not names:
        return
    with exclusive_lock(store):
        for path in map(store.path, names):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    audit.record(store, "retry", iteration.id, {"stage": stage, "removed": list(names)}, datetime.now(UTC))


def _check_idle(settings: Deployment, iteration: Iteration) -> None:
    """Raises ValueError while a run works on the iteration."""
    root = str(settings.store().root)
    with dg.DagsterInstance.from_config(str(Path.cwd())) as instance:
        for run in instance.get_runs(dg.RunsFilter(job_name=LOOP, tags={DATA_ROOT_TAG: root})):
            launcher = instance.run_launcher
            dead = isinstance(launcher, DetachedRunLauncher) and not launcher.is_alive(run.run_id)
            if not run.is_finished and not dead:
                raise ValueError(f"run {run.run_id} is at work on this data root. Let it end, or cancel it, and retry.")


def check_rollout(store: Store, iteration: Iteration, stage: str) -> None:
    """Raises ValueError where the iteration's candidate is in the traffic, or ever was promoted: its records are the
    reason why, and its files may be somebody's way back."""
    version = VERSION.find(store, iteration.id)
    if version is None or stage == "canary":
        return
    if iteration.id in read_log(store, iteration.model_name).rested_on:
        raise ValueError(
            f"version {version.version} of {version.name}, made by iteration {iteration.id}, is in the traffic or was "
            f"promoted; its records are what that rests on. Begin a new iteration instead: {typed(launch_command())}"
        )


def _listed(store: Store, iteration: Iteration, names: Sequence[str]) -> Iterator[str]:
    if not names:
        yield f"Iteration {iteration.id} has nothing of that stage or of one below it: there is nothing to remove."
        return
    yield f"To be removed from iteration {iteration.id}, under {store.root}:"
    for name in names:
        path = store.path(name)
        files = [file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        yield f"  {name:<55} {len(files):>5} files {size / 1e6:>10.1f} MB"


def _agreed() -> bool:
    if not sys.stdin.isatty():
        print("There is no terminal to ask at. Add --yes to go on.", file=sys.stderr)
        return False
    return input("Remove and launch again? [y/N] ").strip().lower() in ("y", "yes")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt retry", description=__doc__)
    options.add_argument("stage", choices=STAGES)
    options.add_argument("--iteration", default="", help="its id; the newest one, unless it is given")
    options.add_argument("--yes", action="store_true", help="remove without asking")
    options.add_argument("--no-launch", action="store_true", help="remove, and print the command to launch with")
    return options
