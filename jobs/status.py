"""`pt status`: one screen that says where the deployment stands, read from its records in a second.

The newest iteration, what each of its stages gave and what to type next, the run at work, the champion, the rollout,
what waits for a person, and the figures of the last iterations. Reads the data root alone: a split that somebody moved
by hand is shown by `pt rollout status`. Exit codes: 0 nothing waits for a person, 1
something does (it says what), 2 the recipe or the record of the rollout cannot be read (it says why).
"""

import argparse
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from assets.environment import Choice, chosen
from assets.kpi import HEAD, IterationView, Kpi, read_kpi
from assets.naming import ROLLOUT, launch_command
from assets.records import PLAN, goes_on
from evals.outlook import Outlook, outlook
from jobs.recipe_choice import typed
from jobs.screen import named, terminal_width
from jobs.workers import WORKERS, Worker, WorkerFiles
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import ModelRef, Record, Store
from pipeline.recipe import Recipe, load
from pipeline.recipe.sources import DemoSource
from pipeline.registry.base_models import with_base
from pipeline.rollout.fold import read_log
from pipeline.rollout.gateway.process import running_address
from pipeline.rollout.propose import ChampionState
from pipeline.rollout.record import Phase, RolloutState, blocked
from pipeline.rollout.router import Unrouted
from pipeline.views.rollout import RolloutStatus, sentences, spell, status

DONE, WAITS, FAILED = 0, 1, 2
LATER = "the same launch without it looks for newer traces"
SHOWN = 5
"""Iterations in the table."""
ROLLOUT_LINES = ("rollout", "phase", "weight", "why", "waits for")


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
    run: Worker | None
    """The run at work on this data root, of this machine's."""
    rollout: RolloutStatus
    waits_for_person: tuple[str, ...]
    gate: Outlook
    """What the next gate can show."""
    kpi: Kpi


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    try:
        read = read_deployment(time.time())
    except (ValueError, OSError) as error:  # the recipe, the newest iteration or the rollout's log
        print(f"status: {error}", file=sys.stderr)
        return FAILED
    shown = view(read, time.time(), terminal_width())
    print(read.model_dump_json(indent=2) if asked.json else "\n".join(shown))
    return WAITS if read.waits_for_person else DONE


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt status", description=__doc__)
    options.add_argument("--json", action="store_true", help="the same as one JSON object")
    return options


def read_deployment(now: float, choice: Choice | None = None) -> DeploymentStatus:
    """Of the recipe that is chosen, or in force. Raises ValueError where the recipe, the newest iteration's name or the
    rollout's log cannot be read."""
    choice = choice or chosen()
    recipe = with_base(load(choice.recipe_path, choice.overrides))
    store, name = Store(recipe.data_root), recipe.base_model.name
    log = read_log(store, name)
    state = log.state
    split_read = Unrouted() if recipe.rollout.traffic.kind == "none" else None
    serving = _serving(recipe, state)
    rollout = status(name, serving, log, split_read, now)
    newest, kpi = store.read(layout.LATEST, Iteration), read_kpi(store, recipe)
    mine = next((each for each in kpi.iterations if newest is not None and each.iteration == newest.id), None)
    at_work = WorkerFiles(WORKERS).at_work(store.root)
    return DeploymentStatus(
        deployment=recipe.name,
        data_root=str(store.root),
        model=name,
        iteration=mine,
        next=next_step(choice, recipe, store, mine, state, bool(at_work)),
        run=at_work[0] if at_work else None,
        rollout=rollout,
        gate=outlook(store, recipe.evaluation, name, serving.model.digest, datetime.fromtimestamp(now, UTC)),
        waits_for_person=tuple(_waiting(store, state, rollout, mine)),
        kpi=kpi,
    )


def next_step(
    choice: Choice, recipe: Recipe, store: Store, newest: IterationView | None, state: RolloutState, at_work: bool
) -> NextStep:
    """What a person may type now."""

    def launch(purpose: str, *more: str, command: str = "") -> NextStep:
        """The command (the loop's launch, unless it is another) with further overrides, added to those in force."""
        keys = {override.partition("=")[0] for override in more}
        kept = [override for override in choice.overrides if override.partition("=")[0] not in keys]
        with_more = Choice(choice.recipe_path, [*kept, *more])
        return NextStep(command=typed(command or launch_command(prefix=recipe.key_prefix), with_more), purpose=purpose)

    if at_work:
        return launch("says how far the run is, which goes on by itself", command="pt status")
    if state.active and recipe.rollout.traffic.kind != "none":
        if state.phase is Phase.HELD or state.waits_for_approval:
            return launch("says what the rollout waits for, and what you may decide", command="pt rollout status")
        own = recipe.rollout.traffic.kind != "gateway" or isinstance(recipe.traces.source, DemoSource)
        if not own and running_address(store.path(layout.gateway(recipe.base_model.name))) is None:
            return launch("keeps the gateway that the rollout waits for", command="pt serve")
        follow = launch_command(ROLLOUT, prefix=recipe.key_prefix)
        return launch("takes the rollout as far as its policy allows now", command=follow)
    if newest is None:
        return launch("makes the first iteration: traces, labels, a training, its evaluation")
    match newest.state:
        case "in progress":
            champion = None if state.past.champion is None else state.past.champion.model
            if goes_on(store, champion, recipe):
                return launch("goes on where it stands")
            return launch("goes on where it stands; over newer traces, another champion or recipe it begins another")
        case "unreadable":
            return launch("goes on once the file is moved away or restored")
        case "not trained":
            plan = PLAN.find(store, newest.iteration)
            if plan is None or not plan.decision.forceable:
                return launch("looks for newer traces: these hold nothing to train on")
            forced = f"selection.method={plan.decision.forceable[0]}"
            return launch(f"trains on these traces all the same; {LATER}", forced)
        case "stopped" | "refused" | "rolled back" | "aborted":
            later = "pt rollout reopen proposes this candidate again" if newest.state == "aborted" else LATER
            return launch(f"trains again, with another seed; {later}", f"training.seed={recipe.training.seed + 1}")
        case "held":
            canary = launch_command(stages="canary", iteration=newest.iteration, prefix=recipe.key_prefix)
            accepted = f'rollout.accept_hold="{newest.iteration}"'
            return launch("rolls the candidate out all the same, once you have looked at it", accepted, command=canary)
        case "promoted":
            return launch("starts the next iteration from it")
        case _:
            return launch("looks for newer traces")


def after_launch(choice: Choice, ended: str, again: str = "") -> Iterator[str]:
    """The last lines of a launch: the outcome, the page, and what to type next (`again`, where it failed)."""
    page, then = "none: there is no iteration yet", typed("pt status", choice)
    try:
        read = read_deployment(time.time(), choice)
        if (newest := read.iteration) is not None:
            path = Store(read.data_root).path(layout.iteration(newest.iteration, layout.PAGE))
            page = path.as_uri() if path.is_file() else f"not written yet: {typed('pt report', choice)}"
            ended += f". Iteration {textwrap.shorten(_iteration(newest, time.time()), 200, placeholder=' ...')}"
        if not again:
            then, ended = read.next.command, f"{ended}. The next command {read.next.purpose}"
    except (ValueError, OSError) as error:
        page = f"none: {error}"
    for name, text in (("outcome", ended), ("page", page), ("next", again or then)):
        yield from named(name, text)


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
    """What a person has to take further, each with where to look."""
    if state.phase is Phase.HELD:
        yield f"the rollout is held at {rollout.weight}%: {state.reason} (pt rollout status)"
    elif state.waits_for_approval:
        yield f"version {state.opened.version.version} wants an approval (pt rollout status)"
    if newest is not None and newest.state == "held":
        yield f"iteration {newest.iteration} is held: {newest.detail}"
    if state.past.champion is not None and (why := blocked(store, state.past.champion)):
        yield f"the champion may not serve: {why} (pt governance blocks)"
    if pending := len(list(store.path(layout.ERASURES, "pending").glob("*.json"))):
        yield f"{pending} erasure(s) were begun and not ended: type pt governance forget again"
    if newest is not None and newest.problems:
        yield f"records of iteration {newest.iteration} cannot be read: {newest.problems[0]}"


def view(read: DeploymentStatus, now: float, width: int) -> Iterator[str]:
    """The screen. Commands are not folded: they are there to be copied."""
    yield f"{read.deployment}: {read.model}"
    yield from named("data root", read.data_root, width)
    yield from named("iteration", "none yet" if read.iteration is None else _iteration(read.iteration, now), width)
    for name, text in read.iteration.stages if read.iteration is not None else ():
        yield from named(f"  {name}", text, width)
    run = "none is at work on this machine" if read.run is None else f"{read.run.run[:8]} of {read.run.job} is at work"
    yield from named("run", run, width)
    yield from named("champion", _champion(read.kpi, now), width)
    yield from named("next gate", read.gate.line(), width)
    for name, text in sentences(read.rollout, now):
        if name in ROLLOUT_LINES:
            yield from named(name, text, width)
    for number, each in enumerate(read.waits_for_person):
        yield from named("" if number else "a person", each, width)
    yield from named("next", read.next.command)
    yield from named("", read.next.purpose, width)
    if read.kpi.iterations:
        yield from ("", *_table(read.kpi.iterations[-SHOWN:]), "")
        for name, value, note in read.kpi.sums():
            yield from named(name, f"{value}; {note}", width)
        for reason in read.kpi.bill.unknown:
            yield from named("", f"not in the cost: {reason}", width)
    for problem in read.kpi.problems:
        yield from named("problem", problem, width)


def _table(iterations: Sequence[IterationView]) -> Iterator[str]:
    """A row for each iteration, the newest first."""
    rows = [HEAD, *(tuple(cell or "-" for cell in each.row) for each in reversed(iterations))]
    widths = [max(len(each[n]) for each in rows) for n in range(len(HEAD))]
    for each in rows:
        yield "  ".join(cell.ljust(size) for cell, size in zip(each, widths, strict=True)).rstrip()


def _iteration(newest: IterationView, now: float) -> str:
    stage = f" at stage {newest.stage}" if newest.stage else ""
    step = f", step {newest.step}" if newest.step is not None else ""
    version = f" as version {newest.version}" if newest.state == "promoted" else ""
    why = f": {newest.detail}" if newest.detail and newest.state != "in rollout" else ""  # which has a line of its own
    began = f"{newest.title}, begun {spell(max(0.0, now - newest.begun_at))} ago"
    return f"{began}, {newest.state}{version}{stage}{step}{why}"


def _champion(kpi: Kpi, now: float) -> str:
    name = f"version {kpi.champion_version}" if kpi.champion_version else "the recipe's base model"
    since = f", promoted {spell(max(0.0, now - kpi.champion_since))} ago" if kpi.champion_since else ""
    right = kpi.champion_quality
    quality = f"; {right.value:.1%} ({right.low:.1%} to {right.high:.1%}) on {kpi.suite}" if right else ""
    return f"{name}{since}{quality}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
