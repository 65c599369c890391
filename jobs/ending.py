"""How an iteration ended, in one line, and what to type next: the first two lines of the summary."""

import json
import shlex
from pathlib import Path
from typing import NamedTuple, Protocol

from assets.environment import chosen
from assets.naming import LOOP, ROLLOUT, launch_command
from assets.outcome import outcome
from assets.records import CHECKPOINT, PLAN, RECORDS, REPORT, VERSION
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.recipe import Recipe
from pipeline.recipe.overrides import split
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import ModelVersion, Phase, RolloutState

STATUS = "pt rollout status"


class DeploymentFiles(Protocol):
    """A deployment as far as its files go: the resource of the assets, or what `pt status` reads without Dagster."""

    @property
    def recipe_path(self) -> str: ...
    @property
    def overrides(self) -> list[str]: ...
    def recipe(self) -> Recipe: ...
    def store(self) -> Store: ...
    def launch(self, job: str = LOOP) -> str: ...


class IterationEnding(NamedTuple):
    """`next` is a command that works as typed, `purpose` what it is for."""

    text: str
    next: str
    purpose: str


def ending(settings: DeploymentFiles, iteration: Iteration) -> IterationEnding:
    """How the iteration ended, or where it stands."""
    store, recipe = settings.store(), settings.recipe()
    ended = outcome(store, iteration)
    if ended is None:
        missing = [stage for stage, record in RECORDS.items() if record.find(store, iteration.id) is None]
        stage = missing[0] if missing else "canary"
        return IterationEnding(f"in progress at stage {stage}", command(settings), "goes on where it stands")
    match ended.ending:
        case "not trained":
            plan, text = PLAN.find(store, iteration.id), f"not now: {ended.detail}"
            if plan is None or not plan.decision.forceable:
                return IterationEnding(
                    text, command(settings), "looks for newer traces: these hold nothing to train on"
                )
            again = command(settings, f"selection.method={plan.decision.forceable[0]}")
            return IterationEnding(text, again, f"trains on these traces all the same; {_LATER}")
        case "stopped":
            again = command(settings, f"training.seed={recipe.training.seed + 1}")
            text = f"stopped by the sentinel: {ended.detail}"
            return IterationEnding(text, again, f"trains anew, with another seed; {_LATER}")
        case "refused":
            again = command(settings, f"training.seed={recipe.training.seed + 1}")
            text = f"refused by the gate{_figures(store, iteration)}: {ended.detail}"
            return IterationEnding(text, again, f"trains another candidate on these traces; {_LATER}")
        case "held":
            trained = CHECKPOINT.find(store, iteration.id)
            reasons = trained.health.why if trained else ended.detail
            tags = shlex.quote(json.dumps({"iteration": iteration.id}))
            launch = f"{shlex.join(launch_command(recipe, stage='canary'))} --tags {tags}"
            accept = command(settings, f'rollout.accept_hold="{iteration.id}"', launch=launch)
            text = f"held{_figures(store, iteration)}: {reasons}"
            return IterationEnding(text, accept, "rolls the candidate out all the same, once you have looked at it")
        case "registered":
            text = f"registered{_figures(store, iteration)}: {ended.detail}"
            return IterationEnding(text, command(settings), "looks for newer traces")
        case "rollout":
            return _rolled_out(settings, iteration)


def command(settings: DeploymentFiles, *more: str, launch: str = "") -> str:
    """The launch (of the loop, unless it is another) with further overrides, beside those that are in force."""
    launch = launch or settings.launch()
    keys = {override.partition("=")[0] for override in more}
    kept = [override for override in settings.overrides if override.partition("=")[0] not in keys]
    words = [each if split(each) == [each] else f'"{each}"' for each in (*kept, *more)]
    set_to = f"PREFERENCE_TUNING_OVERRIDES={shlex.quote(' '.join(words))} " if words else ""
    if Path(settings.recipe_path).resolve() != Path(chosen().recipe_path).resolve():
        set_to = f"PREFERENCE_TUNING_RECIPE={shlex.quote(settings.recipe_path)} {set_to}"
    return f"{set_to}{launch}"


def candidate(state: RolloutState, iteration: Iteration, version: ModelVersion | None) -> str:
    """Where the rollout of this iteration's candidate stands."""
    if version is None:
        return "no candidate of this iteration"
    name = f"version {version.version}"
    if state.proposal is not None and state.proposal.version.iteration == iteration.id:
        weight = f", {state.canary_weight}% on the canary" if state.active else ""
        return f"{name}: {state.phase}{weight}{f' ({state.reason})' if state.reason else ''}"
    if state.past.champion is not None and state.past.champion.iteration == iteration.id:
        return f"{name}: {Phase.PROMOTED}"
    return f"{name}: {Phase.ROLLED_BACK if version.model.digest in state.past.quarantined else 'not rolled out'}"


_LATER = "the same launch without it looks for newer traces"


def _rolled_out(settings: DeploymentFiles, iteration: Iteration) -> IterationEnding:
    store, again = settings.store(), command(settings)
    state = read_state(store, iteration.model_name)
    version, figures = VERSION.find(store, iteration.id), _figures(store, iteration)
    assert version is not None, "a rollout is of a version"
    if state.past.champion is not None and state.past.champion.iteration == iteration.id:
        return IterationEnding(
            f"promoted version {version.version}{figures}", again, "starts the next iteration from it"
        )
    stands = candidate(state, iteration, version)
    if state.proposal is None or state.proposal.version.iteration != iteration.id or not state.active:
        return IterationEnding(f"not promoted{figures}: {stands}", again, "looks for newer traces")
    if state.phase is Phase.HELD:
        return IterationEnding(
            f"rollout held{figures}: {stands}", command(settings, launch=STATUS), "says what it waits for"
        )
    onward = command(settings, launch=settings.launch(ROLLOUT))
    return IterationEnding(f"in rollout{figures}: {stands}", onward, "takes it as far as its policy allows now")


def _figures(store: Store, iteration: Iteration) -> str:
    report = REPORT.find(store, iteration.id)
    compared = report.target().comparison if report else None
    return f", {compared.champion.value:.1%} -> {compared.candidate.value:.1%}" if compared else ""
