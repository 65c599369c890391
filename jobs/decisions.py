"""A person's decision about a rollout (`pt rollout approve | pause | resume | abort | rollback`, and the job
`rollout_decision`), carried out before the command returns."""

import argparse
import time
from collections.abc import Iterator

from assets.naming import ROLLOUT
from assets.resources import Deployment, deployment
from assets.rollout import rollout_ports
from pipeline.rollout.decision import MIN_DIGEST, RolloutDecision, decide
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Action, Phase
from pipeline.rollout.router import Tick

COMMAND = "pt rollout"
DONE, REFUSED, FAILED = 0, 1, 2
HELP: dict[Action, str] = {
    "approve": "let a candidate in that waits for a person: one of rollout.approvers, who did not propose it",
    "resume": "let a held rollout go on at its weight; its stage starts over, its evidence stays",
    "pause": "hold a rollout at its weight; it is still looked at, and rolled back for harm",
    "abort": "take an active rollout back to 0%% now, without blaming the candidate",
    "rollback": "take the canary back to 0%% now; its model is quarantined",
}
TO_ZERO = ("abort", "rollback")
"""What is done once the router reads 0%."""


def decide_by_command(settings: Deployment, asked: argparse.Namespace) -> int:
    decision = RolloutDecision(action=asked.command, reason=asked.reason, by=asked.by, rollout=asked.rollout)
    done = take(settings, decision)
    print("\n".join(outcome_lines(decision, done)))
    return exit_code(decision, done)


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


def take(settings: Deployment, decision: RolloutDecision) -> Tick:
    """Carry a person's decision out on this deployment."""
    return decide(rollout_ports(settings), decision, time.time())


def outcome_lines(decision: RolloutDecision, done: Tick) -> Iterator[str]:
    """What a decision led to, and what to do next."""
    state, look = done.state, look_command()
    for error in done.errors:
        yield f"Not everything follows yet, the next look tries again: {error}"
    if done.refused:
        yield f"Nothing was done: {done.refused}."
    elif decision.action in TO_ZERO and state.phase is Phase.ROLLING_BACK:
        yield f"Rollout {state.rollout} is to go back to 0%, and the router does not read that yet."
        yield f"  try again: {look}"
    elif decision.action in TO_ZERO:
        yield f"Rollout {state.rollout} is {state.phase}: the router reads 0% on the canary ({state.reason})."
        yield f"  the next candidate: {deployment().launch()}"
    elif decision.action == "pause":
        yield f"Rollout {state.rollout} is held at {state.canary_weight}%."
        yield f"  it goes on with: {COMMAND} resume --rollout {state.rollout} --reason 'WHY'"
    else:
        goes_on = f"goes on at {state.canary_weight}%: its stage starts over, its evidence stays."
        if decision.action == "approve":
            goes_on = f"is approved by {decision.by}: it gets its first weight once its slot serves it."
        elif state.confirmed_stage < 0:
            goes_on = "goes on: it had no traffic yet, and gets its first weight once its slot serves it."
        yield f"Rollout {state.rollout} {goes_on}"
        yield f"  the next look: {look}"


def look_command() -> str:
    """What takes the rollout further."""
    return deployment().launch(ROLLOUT)


def exit_code(decision: RolloutDecision, done: Tick) -> int:
    """0, 1 when it was refused, 2 when the router does not read 0% and should."""
    if done.refused:
        return REFUSED
    return FAILED if decision.action in TO_ZERO and done.state.phase is Phase.ROLLING_BACK else DONE
