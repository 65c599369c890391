"""`pt status`: one screen that says where the deployment stands, read from its records in a second.

The newest iteration and its stage, the run that is at work on it, the champion, the rollout with its weight, what waits
for a person, and the key figures of the last iterations. Answers before the first launch, during a run and after a
kill. Reads the data root alone: no Dagster, no router and no server is asked, so a split that somebody moved by hand is
shown by `pt rollout status`. Exit codes: 0 nothing waits for a person, 1 something does (it says what), 2 the recipe or
the record of the rollout cannot be read (it says why).
"""

import argparse
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from assets.environment import chosen
from assets.kpi.fold import read_kpi
from assets.kpi.records import IterationKpi, Kpi
from assets.naming import LOOP, launch_command
from jobs.ending import IterationEnding, command, ending
from jobs.status_view import view
from jobs.workers import RunNote, worker_files
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import ModelRef, Record, Store
from pipeline.recipe import Recipe, load
from pipeline.rollout.blocks import blocked
from pipeline.rollout.fold import fold
from pipeline.rollout.propose import ChampionState
from pipeline.rollout.record import Phase, RolloutState, read_events
from pipeline.rollout.router import Unrouted
from pipeline.rollout.status import RolloutStatus, status

DONE, WAITS, FAILED = 0, 1, 2
NEWEST = 5
"""Iterations in the table, unless --last says otherwise."""


class DeploymentStatus(Record):
    """What the screen shows."""

    deployment: str
    """The recipe's name."""
    data_root: str
    model: str
    iteration: IterationKpi | None
    """The newest."""
    ended: str
    """How it ended, or where it stands; "" before the first."""
    next: str
    """A command that works as typed."""
    purpose: str
    run: RunNote | None
    """The run at work on this data root, of this machine's."""
    runs_seen: bool
    """Whether runs are processes of this machine; else Dagster alone knows of them."""
    rollout: RolloutStatus
    waits_for_person: tuple[str, ...]
    kpi: Kpi


@dataclass(frozen=True)
class RecipeOnDisk:
    """The deployment that the environment names, without Dagster."""

    recipe_path: str
    overrides: list[str]
    loaded: Recipe

    def recipe(self) -> Recipe:
        return self.loaded

    def store(self) -> Store:
        return Store(self.recipe().data_root)

    def launch(self, job: str = LOOP) -> str:
        return shlex.join(launch_command(self.recipe(), job))


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    try:
        read = read_deployment(asked.last, time.time())
    except (ValueError, OSError) as error:  # the recipe, the newest iteration or the rollout's log
        print(f"status: {error}", file=sys.stderr)
        return FAILED
    width = shutil.get_terminal_size((120, 24)).columns
    shown = view(read, time.time(), width, sys.stdout.isatty())
    print(read.model_dump_json(indent=2) if asked.json else "\n".join(shown))
    return WAITS if read.waits_for_person else DONE


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt status", description=__doc__)
    options.add_argument("--last", type=_count, default=NEWEST, metavar="N", help="iterations in the table (default 5)")
    options.add_argument("--json", action="store_true", help="the same as one JSON object")
    return options


def read_deployment(last: int, now: float) -> DeploymentStatus:
    """Raises ValueError where the recipe, the newest iteration's name or the rollout's log cannot be read."""
    choice = chosen()
    settings = RecipeOnDisk(choice.recipe_path, choice.overrides, load(choice.recipe_path, choice.overrides))
    recipe, store = settings.recipe(), settings.store()
    name, files = recipe.base_model.name, worker_files(Path("dagster.yaml"))
    events = read_events(store, name)
    state = fold(events)
    split = Unrouted() if recipe.rollout.traffic.kind == "none" else None
    rollout = status(name, _serving(recipe, state), events, split, now)
    newest = store.read(layout.LATEST, Iteration)
    figures = read_kpi(store, recipe, last)
    ended = _ended(settings, newest) if newest is not None else None
    mine = next((each for each in figures.iterations if newest is not None and each.iteration == newest.id), None)
    at_work = files.at_work(store.root) if files is not None else []
    return DeploymentStatus(
        deployment=recipe.name,
        data_root=str(store.root),
        model=name,
        iteration=mine,
        ended=ended.text if ended else "",
        next=ended.next if ended else command(settings, launch=settings.launch()),
        purpose=ended.purpose if ended else "makes the first iteration: traces, labels, a training, its evaluation",
        run=at_work[0] if at_work else None,
        runs_seen=files is not None,
        rollout=rollout,
        waits_for_person=tuple(_waiting(store, state, rollout, mine)),
        kpi=figures,
    )


def _ended(settings: RecipeOnDisk, newest: Iteration) -> IterationEnding:
    """A record that is damaged is a sentence here, not the end of the screen."""
    try:
        return ending(settings, newest)
    except ValueError as error:
        text = f"its records cannot be read: {str(error).splitlines()[0]}"
        return IterationEnding(text, command(settings), "goes on once the file is moved away or restored")


def _serving(recipe: Recipe, state: RolloutState) -> ChampionState:
    """The digest of the base model is taken from the record, where it was compared: to compute it takes long."""
    if state.past.champion is not None:
        return ChampionState(
            model=state.past.champion.model,
            version=state.past.champion.version,
            promotions=state.past.promotions,
            since=None,
        )
    compared = state.proposal.champion.digest if state.proposal is not None else ""
    return ChampionState(model=ModelRef(uri=recipe.base_model.uri, digest=compared), version=0, promotions=0)


def _waiting(store: Store, state: RolloutState, rollout: RolloutStatus, newest: IterationKpi | None) -> Iterator[str]:
    """What nobody but a person can take further, each with where to look."""
    if state.phase is Phase.HELD:
        yield f"the rollout is held at {rollout.weight}%: {rollout.reason} (pt rollout status)"
    elif rollout.waits_for.startswith("a person"):
        yield f"version {rollout.candidate.version if rollout.candidate else '?'} wants an approval (pt rollout status)"
    if newest is not None and newest.state == "held":
        yield f"iteration {newest.iteration} is held: {newest.detail}"
    if state.past.champion is not None and (why := blocked(store, state.past.champion)):
        yield f"the champion may not serve: {why} (pt governance blocks)"
    if pending := len(list(store.path(layout.ERASURES, "pending").glob("*.json"))):
        yield f"{pending} erasure(s) were begun and not ended: type pt governance forget again"
    for each in (newest,) if newest is not None and newest.problems else ():
        yield f"records of iteration {each.iteration} cannot be read: {each.problems[0]}"


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of iterations: give 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
