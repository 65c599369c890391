"""`pt status`: one screen that says where the deployment stands, read from its records in a second.

The newest iteration, what each of its stages gave and what to type next, the run at work, the champion, the rollout,
what waits for a person, and the figures of the last iterations. Reads the data root alone: a split that somebody moved
by hand is shown by `pt rollout status`. Exit codes: 0 nothing waits for a person, 1
something does (it says what), 2 the recipe or the record of the rollout cannot be read (it says why).
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from assets.environment import Choice, chosen
from assets.kpi import IterationView, Kpi, read_kpi
from assets.naming import ROLLOUT, launch_command
from assets.records import PLAN
from jobs.screen import terminal_width
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
LATER = "the same launch without it looks for newer traces"


class NextStep(Record):
    """A command that works as typed, and what it is for."""

    command: str
    purpose: str


class DeploymentStatus(Record):
    """What the screen shows."""

    deployment: str
    """The recipe's name."""
    data_root: str
    model: str
    iteration: IterationView | None
    """The newest."""
    next: NextStep
    run: RunNote | None
    """The run at work on this data root, of this machine's."""
    runs_seen: bool
    """Whether runs are processes of this machine; else Dagster alone knows of them."""
    rollout: RolloutStatus
    waits_for_person: tuple[str, ...]
    kpi: Kpi


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    try:
        read = read_deployment(asked.last, time.time())
    except (ValueError, OSError) as error:  # the recipe, the newest iteration or the rollout's log
        print(f"status: {error}", file=sys.stderr)
        return FAILED
    shown = view(read, time.time(), terminal_width(), sys.stdout.isatty())
    print(read.model_dump_json(indent=2) if asked.json else "\n".join(shown))
    return WAITS if read.waits_for_person else DONE


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt status", description=__doc__)
    options.add_argument("--last", type=int, default=5, metavar="N", help="iterations in the table (default 5)")
    options.add_argument("--json", action="store_true", help="the same as one JSON object")
    return options


def read_deployment(last: int, now: float) -> DeploymentStatus:
    """Raises ValueError where the recipe, the newest iteration's name or the rollout's log cannot be read."""
    choice = chosen()
    recipe = load(choice.recipe_path, choice.overrides)
    store, name, files = Store(recipe.data_root), recipe.base_model.name, worker_files(Path("dagster.yaml"))
    events = read_events(store, name)
    state = fold(events)
    split_read = Unrouted() if recipe.rollout.traffic.kind == "none" else None
    rollout = status(name, _serving(recipe, state), events, split_read, now)
    newest, kpi = store.read(layout.LATEST, Iteration), read_kpi(store, recipe, max(1, last))
    mine = next((each for each in kpi.iterations if newest is not None and each.iteration == newest.id), None)
    at_work = files.at_work(store.root) if files is not None else []
    return DeploymentStatus(
        deployment=recipe.name,
        data_root=str(store.root),
        model=name,
        iteration=mine,
        next=next_step(choice, recipe, store, mine, state),
        run=at_work[0] if at_work else None,
        runs_seen=files is not None,
        rollout=rollout,
        waits_for_person=tuple(_waiting(store, state, rollout, mine)),
        kpi=kpi,
    )


def next_step(
    choice: Choice, recipe: Recipe, store: Store, newest: IterationView | None, state: RolloutState
) -> NextStep:
    """What a person may type now."""

    def launch(purpose: str, *more: str, words: Sequence[str] = ()) -> NextStep:
        """The launch (of the loop, unless it is another) with further overrides, beside those that are in force."""
        keys = {override.partition("=")[0] for override in more}
        kept = [override for override in choice.overrides if override.partition("=")[0] not in keys]
        overrides = shlex.join([*kept, *more])
        set_to = f"PREFERENCE_TUNING_OVERRIDES={shlex.quote(overrides)} " if overrides else ""
        return NextStep(command=f"{set_to}{shlex.join(words or launch_command(recipe))}", purpose=purpose)

    if newest is None:
        return launch("makes the first iteration: traces, labels, a training, its evaluation")
    match newest.state:
        case "in progress":
            return launch("goes on where it stands")
        case "unreadable":
            return launch("goes on once the file is moved away or restored")
        case "not trained":
            plan = PLAN.find(store, newest.iteration)
            if plan is None or not plan.decision.forceable:
                return launch("looks for newer traces: these hold nothing to train on")
            forced = f"selection.method={plan.decision.forceable[0]}"
            return launch(f"trains on these traces all the same; {LATER}", forced)
        case "stopped" | "refused":
            return launch(f"trains anew, with another seed; {LATER}", f"training.seed={recipe.training.seed + 1}")
        case "held":
            words = [*launch_command(recipe, stage="canary"), "--tags", json.dumps({"iteration": newest.iteration})]
            accepted = f'rollout.accept_hold="{newest.iteration}"'
            return launch("rolls the candidate out all the same, once you have looked at it", accepted, words=words)
        case "in rollout" if state.phase is Phase.HELD:
            return launch("says what it waits for", words=["pt", "rollout", "status"])
        case "in rollout":
            return launch("takes it as far as its policy allows now", words=launch_command(recipe, ROLLOUT))
        case "promoted":
            return launch("starts the next iteration from it")
        case _:
            return launch("looks for newer traces")


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


def _waiting(store: Store, state: RolloutState, rollout: RolloutStatus, newest: IterationView | None) -> Iterator[str]:
    """What nobody but a person can take further, each with where to look."""
    if state.phase is Phase.HELD:
        yield f"the rollout is held at {rollout.weight}%: {rollout.reason} (pt rollout status)"
    elif rollout.waits_for.startswith("one of"):
        yield f"version {rollout.candidate.version if rollout.candidate else '?'} wants an approval (pt rollout status)"
    if newest is not None and newest.state == "held":
        yield f"iteration {newest.iteration} is held: {newest.detail}"
    if state.past.champion is not None and (why := blocked(store, state.past.champion)):
        yield f"the champion may not serve: {why} (pt governance blocks)"
    if pending := len(list(store.path(layout.ERASURES, "pending").glob("*.json"))):
        yield f"{pending} erasure(s) were begun and not ended: type pt governance forget again"
    if newest is not None and newest.problems:
        yield f"records of iteration {newest.iteration} cannot be read: {newest.problems[0]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
