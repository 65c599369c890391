"""`approve`, `resume`, `pause`, `abort` and `rollback`: a person's decision, carried out before the command returns."""

import argparse
import time
from collections.abc import Iterator

from assets.resources import Deployment, deployment
from assets.rollout import rollout_ports
from jobs.rollout import COMMAND, DONE, FAILED, REFUSED, AddCommand, look_command
from pipeline.rollout.decision import MIN_DIGEST, DecisionResult, RolloutDecision, decide
from pipeline.rollout.fold import read_state
from pipeline.rollout.policy import account
from pipeline.rollout.record import Action, Phase, RolloutState

HELP = {
    "approve": "let a candidate in that waits for a person: one of rollout.approvers, who did not propose it",
    "resume": "let a held rollout go on at its weight; its stage starts over, its evidence stays",
    "pause": "hold a rollout at its weight; it is still looked at, and rolled back for harm",
    "abort": "take an active rollout back to 0%% now, without blaming the candidate",
}
TO_ZERO = ("abort", "rollback")
"""What is done once the router reads 0%."""


def add_to(add: AddCommand) -> None:
    for action, text in HELP.items():
        command = add(action, help=text)
        decision_options(command)
        command.set_defaults(run=_decide)


def decision_options(command: argparse.ArgumentParser, reason_required: bool = True) -> None:
    text = "why: it goes into the event and the audit log"
    command.add_argument("--reason", default="", required=reason_required, help=text)
    command.add_argument("--by", default=account(), help="who decides (default: %(default)s)")
    command.add_argument("--rollout", default="", help="its id or its candidate's digest: refused for another one")


def launchpad_decision(
    settings: Deployment, action: Action, rollout: str, digest: str, reason: str, by: str
) -> RolloutDecision:
    """A decision of Dagster's Launchpad, which names its rollout and its candidate: a form is easily sent late. Raises
    ValueError where they are not those of the latest. `digest`: of the candidate, or its beginning."""
    state = read_state(settings.store(), settings.recipe().base_model.name)
    latest = state.proposal.version.model.digest if state.proposal else ""
    if len(digest) < MIN_DIGEST or not latest.startswith(digest) or rollout != state.rollout:
        raise ValueError(
            f"The decision is about rollout {rollout or '(none)'} of model {digest or '(none)'}; the latest is "
            f"{f'{state.rollout} of {latest[:MIN_DIGEST]}' if latest else 'none'}. Look at it, and decide again."
        )
    return RolloutDecision(action=action, reason=reason, by=by, rollout=rollout)


def take(settings: Deployment, decision: RolloutDecision, registry: bool = True) -> DecisionResult:
    """Carry a person's decision out on this deployment. `registry`: whether MLflow follows at once."""
    return decide(rollout_ports(settings, registry=registry), decision, time.time())


def outcome_lines(decision: RolloutDecision, done: DecisionResult) -> Iterator[str]:
    """What a decision led to, and what to do next."""
    state = done.state
    for error in done.errors:
        yield f"Not everything follows yet, the next look tries again: {error}"
    if done.refused:
        yield f"Nothing was done: {done.refused}."
    elif decision.action in TO_ZERO:
        yield from _taken_back(state)
    elif decision.action == "pause":
        yield f"Rollout {state.rollout} is held at {state.canary_weight}%."
        yield f"  it goes on with: {COMMAND} resume --rollout {state.rollout} --reason 'WHY'"
    else:
        yield f"Rollout {state.rollout} {_goes_on(decision, state)}"
        yield f"  the next look: {look_command()}"


def _taken_back(state: RolloutState) -> Iterator[str]:
    if state.phase is Phase.ROLLING_BACK:
        yield f"Rollout {state.rollout} is to go back to 0%, and the router does not read that yet."
        yield f"  try again: {look_command()}"
        return
    yield f"Rollout {state.rollout} is {state.phase}: the router reads 0% on the canary ({state.reason})."
    yield f"  the next candidate: {deployment().launch()}"


def _goes_on(decision: RolloutDecision, state: RolloutState) -> str:
    if decision.action == "approve":
        return f"is approved by {decision.by}: it gets its first weight once its slot serves it."
    if state.confirmed_stage < 0:
        return "goes on: it had no traffic yet, and gets its first weight once its slot serves it."
    return f"goes on at {state.canary_weight}%: its stage starts over, its evidence stays."


def exit_code(decision: RolloutDecision, done: DecisionResult) -> int:
    """0, 1 when it was refused, 2 when the router does not read 0% and should."""
    if done.refused:
        return REFUSED
    return FAILED if decision.action in TO_ZERO and done.state.phase is Phase.ROLLING_BACK else DONE


def _decide(settings: Deployment, asked: argparse.Namespace) -> int:
    decision = RolloutDecision(action=asked.command, reason=asked.reason, by=asked.by, rollout=asked.rollout)
    done = take(settings, decision)
    print("\n".join(outcome_lines(decision, done)))
    return exit_code(decision, done)
