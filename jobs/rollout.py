"""The rollout at a terminal: `python -m jobs.rollout status [--json] | resume --reason TEXT | abort --reason TEXT`.

`abort` has moved the traffic and read it back when it returns; `resume` lets a held rollout go on at its weight.
Exit codes: 0 done, 1 refused or nothing to act on (it says why), 2 it could not be done (it says why).
"""

import argparse
import os
import pwd
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from assets.resources import Deployment, deployment
from pipeline.registry.versions import project
from pipeline.rollout.decision import DecisionResult, RolloutDecision, decide
from pipeline.rollout.ports import RolloutPorts
from pipeline.rollout.record import TERMINAL, Phase, read_events
from pipeline.rollout.router import LocalRouter
from pipeline.rollout.status import ArmStatus, RolloutStatus, status

COMMAND = "python -m jobs.rollout"
LOOK = "dagster job launch -j canary_rollout"
NEXT = "dagster job launch -j preference_tuning"
DONE, REFUSED, FAILED = 0, 1, 2


def main(arguments: list[str]) -> int:
    asked = _parser().parse_args(arguments)
    try:
        return asked.run(deployment(), asked)
    except AssertionError:  # a bug of ours keeps its traceback
        raise
    except Exception as error:  # boundary: a person at a terminal; routers and stores have errors of their own
        print(f"{asked.command}: {error} ({type(error).__name__})", file=sys.stderr)
        return FAILED


def read_status(settings: Deployment) -> RolloutStatus:
    """The latest rollout of the deployment's model."""
    store, name = settings.store(), settings.recipe().base_model.name
    return status(name, settings.champion(), read_events(store, name), LocalRouter(store, name).read(), time.time())


def take(settings: Deployment, decision: RolloutDecision) -> DecisionResult:
    """Carry a person's decision out on this deployment."""
    store, name, uri = settings.store(), settings.recipe().base_model.name, settings.tracking_uri()
    ports = RolloutPorts(store, name, LocalRouter(store, name), lambda state: project(uri, state))
    return decide(ports, decision, time.time())


def outcome_lines(decision: RolloutDecision, done: DecisionResult) -> Iterator[str]:
    """What a decision led to, and what to do next."""
    state = done.state
    for error in done.errors:
        yield f"Not everything follows yet, the next look tries again: {error}"
    if done.refused:
        yield f"Nothing was done: {done.refused}."
    elif decision.action == "resume":
        yield f"Rollout {state.rollout} goes on at {state.canary_weight}%: its stage starts over, its evidence stays."
        yield f"  the next look: {LOOK}"
    elif state.phase is Phase.ROLLING_BACK:
        yield f"Rollout {state.rollout} is to go back to 0%, and the router does not read that yet."
        yield f"  try again: {LOOK}"
    else:
        yield f"Rollout {state.rollout} is {state.phase}: the router reads 0% on the canary ({state.reason})."
        yield f"  the next candidate: {NEXT}"


def lines(report: RolloutStatus, now: float) -> Iterator[str]:
    """The status for a person."""
    serving = f"version {report.serving_version}" if report.serving_version else "the base model"
    yield _field("model", report.model)
    if report.candidate is None:
        yield _field("rollout", "none yet")
        yield _field("serves", f"{serving} ({report.serving_digest[:12]}), all requests")
        yield _field("waits for", report.waits_for)
        yield _field("", NEXT)
        return
    candidate = report.candidate
    yield _field("rollout", f"{report.rollout}, of version {candidate.version} from iteration {candidate.iteration}")
    yield _field(
        "phase", f"{report.phase} since {_moment(report.since, now)}, stage {report.stage + 1} of {report.stages}"
    )
    read = "no split of this rollout" if report.router is None else f"{report.router}%"
    yield _field("weight", f"{report.weight}% on the canary; the router reads {read}")
    yield _field("champion", f"{serving} ({report.serving_digest[:12]})")
    yield _field("why", f"{report.reason}{f' (decided by {report.by})' if report.by else ''}")
    for name, arm in (("canary did", report.canary), ("compared with", report.champion)):
        if arm is not None:
            yield _field(name, _did(arm))
    last = f", the last at {_moment(report.last_look_at, now)}" if report.looks else ""
    if report.last_look and report.last_look != report.reason:
        last += f": {report.last_look}"
    yield _field("looks", f"{report.looks}{last}")
    if report.decisions:
        yield _field("dwell", f"{report.dwell_s:.0f} of {report.wanted_dwell_s:.0f} s with metrics")
        graded = 0 if report.canary is None else report.canary.graded
        yield _field("", f"{graded:.0f} of {report.wanted_graded} graded canary requests")
    yield _field("waits for", report.waits_for)
    yield _field("commands", NEXT if report.phase in TERMINAL else LOOK)
    for action in report.decisions:
        yield _field("", f"{COMMAND} {action} --rollout {report.rollout} --reason 'WHY'")


def _field(name: str, value: str) -> str:
    return f"{name:<15}{value}".rstrip()


def _did(arm: ArmStatus) -> str:
    if arm.quality.value is None or arm.quality.low is None or arm.quality.high is None:
        return f"{arm.requests:,.0f} requests, none graded, {arm.errors:,.0f} errors"
    interval = f"95% interval {arm.quality.low:.1%} to {arm.quality.high:.1%}"
    quality = f"{arm.quality.value:.1%} of {arm.graded:,.0f} graded are right ({interval})"
    return f"{arm.requests:,.0f} requests, {quality}, {arm.errors:,.0f} errors"


def _moment(at: float | None, now: float) -> str:
    assert at is not None, "it has happened"
    ago = max(0.0, now - at)
    units = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))
    size, unit = next((each for each in units if ago >= 2 * each[0]), (1, "seconds"))
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC ({ago / size:.0f} {unit} ago)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("status", help="where the rollout stands, what was measured, what may be decided")
    shown.add_argument("--json", action="store_true", help="the same as one JSON object")
    shown.set_defaults(run=_status)
    for action, text in (
        ("resume", "let a held rollout go on at its weight; its stage starts over, its evidence stays"),
        ("abort", "take an active rollout back to 0% now, without blaming the candidate"),
    ):
        command = commands.add_parser(action, help=text)
        command.add_argument("--reason", required=True, help="why: it goes into the event and the audit log")
        command.add_argument("--by", default=_account(), help="who decides (default: %(default)s)")
        command.add_argument("--rollout", default="", help="its id or its candidate's digest: refused for another one")
        command.set_defaults(run=_decide)
    return parser


def _account() -> str:
    """The login name of whoever runs this; the number of the account where it has no name, as in a container."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return f"uid {os.getuid()}"


def _status(settings: Deployment, asked: argparse.Namespace) -> int:
    report = read_status(settings)
    print(report.model_dump_json(indent=2) if asked.json else "\n".join(lines(report, time.time())))
    return DONE


def _decide(settings: Deployment, asked: argparse.Namespace) -> int:
    decision = RolloutDecision(action=asked.command, reason=asked.reason, by=asked.by, rollout=asked.rollout)
    done = take(settings, decision)
    print("\n".join(outcome_lines(decision, done)))
    if done.refused:
        return REFUSED
    return FAILED if decision.action == "abort" and done.state.phase is Phase.ROLLING_BACK else DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
