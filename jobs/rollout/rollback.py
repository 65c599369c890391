"""`rollback`: a person's finding that the candidate harms. Its traffic goes to 0% and the model is quarantined.

`--now` needs the store and the router alone, no MLflow and no Dagster instance. `--router-only` needs the router alone:
it sets the weight to 0 under the rollout's name, and the next look, which finds another weight than the record asks
for, holds the rollout.
"""

import argparse
import time

from assets.resources import Deployment
from assets.traffic import traffic_split
from jobs.rollout import COMMAND, DONE, REFUSED, AddCommand, look_command
from jobs.rollout.decide import decision_options, exit_code, outcome_lines, take
from pipeline.rollout.decision import RolloutDecision
from pipeline.rollout.router import Split, TrafficSplit, Unrouted, Unsettled, asked_for, without_canary

READ_BACK_WITHIN_S = 10.0


def add_to(add: AddCommand) -> None:
    command = add("rollback", help="take the canary back to 0%% now; its model is quarantined")
    decision_options(command, reason_required=False)
    how = command.add_mutually_exclusive_group()
    how.add_argument("--now", action="store_true", help="with the store and the router alone: MLflow follows later")
    how.add_argument("--router-only", action="store_true", help="weight 0 without the store; the next look holds")
    command.set_defaults(run=_rollback)


def router_to_zero(split: TrafficSplit, sleep_s: float = 0.5) -> str:
    """Give the champion everything, at the router alone; says what is in force then. Raises ValueError when it does
    not read so."""
    read = split.read()
    if isinstance(read, Unrouted):
        raise ValueError(f"{read.reason}. Set the weights of what serves your users by hand.")
    before = asked_for(read)
    if before is None:
        why = read.reason if isinstance(read, Unsettled) else "none was ever applied"
        raise ValueError(f"The router reads no split ({why}). Set its weights by hand.")
    if before.canary_weight:
        split.apply(without_canary(before))
    elif isinstance(read, Split):
        return (
            f"Rollout {before.rollout}: the router reads 0% on the canary already. Where it is yet to get its first "
            f"weight, stop it by {COMMAND} pause or abort."
        )
    deadline = time.monotonic() + READ_BACK_WITHIN_S
    while True:
        after = split.read()
        if isinstance(after, Split) and after.canary_weight == 0:
            return f"Rollout {after.rollout}: the router reads 0% on the canary, {before.canary_weight}% before."
        if time.monotonic() > deadline:
            raise ValueError(f"The router still reads {after}. Set its weights by hand.")
        time.sleep(sleep_s)


def _rollback(settings: Deployment, asked: argparse.Namespace) -> int:
    began = time.monotonic()
    if asked.router_only:
        return _router_only(settings, asked.rollout)
    decision = RolloutDecision(action="rollback", reason=asked.reason, by=asked.by, rollout=asked.rollout)
    done = take(settings, decision, registry=not asked.now)
    print("\n".join(outcome_lines(decision, done)))
    if not done.refused:
        print(f"  decided as epoch {done.state.epoch} by {asked.by}, {time.monotonic() - began:.1f} s in all")
    return exit_code(decision, done)


def _router_only(settings: Deployment, rollout: str) -> int:
    split = traffic_split(settings)
    in_force = asked_for(split.read())
    if rollout and in_force is not None and not _names(in_force, rollout):
        print(f"Nothing was done: the router serves rollout {in_force.rollout}, not {rollout}.")
        return REFUSED
    print(router_to_zero(split))
    print(
        "  The record does not know why: the next look finds another weight than it asked for, and holds the rollout."
    )
    print(f"  the next look: {look_command()}")
    return DONE


def _names(split: Split, wanted: str) -> bool:
    return wanted == split.rollout or (split.canary is not None and split.canary.digest.startswith(wanted))
