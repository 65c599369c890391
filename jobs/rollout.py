"""The rollout at a terminal, and the decisions that the job `rollout_decision` takes too:
`pt rollout status | approve | pause | resume | abort | rollback | reopen`.

Exit codes: 0 done, 1 refused or nothing to act on (it says why), 2 it could not be done (it says why).
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from assets.resources import Deployment, deployment
from assets.rollout import read_status, rollout_ports
from jobs.recipe_choice import typed
from jobs.screen import CYAN, GREEN, GREY, RED, YELLOW, named, paint, terminal_width
from jobs.status import read_deployment
from pipeline.recipe.pinning import differences
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.fold import read_state
from pipeline.rollout.policy import account
from pipeline.rollout.record import Action, Phase
from pipeline.rollout.router import Tick
from pipeline.views.rollout import ArmRow, RolloutStatus, arm_rows, sentences

COMMAND = "pt rollout"
DONE, REFUSED, FAILED = 0, 1, 2
HELP: dict[Action, str] = {
    "approve": "let a candidate in that waits for a person: one of rollout.approvers, who did not propose it",
    "resume": "let a held rollout go on at its weight; its stage starts over, its evidence stays",
    "pause": "hold a rollout at its weight; it is still looked at, and rolled back for harm",
    "abort": "take an active rollout back to 0%% now, without blaming the candidate",
    "rollback": "take the canary back to 0%% now; its model is quarantined",
    "reopen": "propose an aborted candidate again, by the policy that the recipe has now",
}
TO_ZERO = ("abort", "rollback")
"""What is done once the router reads 0%."""
PHASES = {
    Phase.HELD: YELLOW,
    **dict.fromkeys((Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.ABORTED), RED),
    Phase.PROMOTED: GREEN,
    Phase.SUPERSEDED: GREY,
}


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = options.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("status", help="where it stands, what was measured, what may be decided")
    shown.add_argument("--json", action="store_true", help="the same as one JSON object")
    shown.set_defaults(run=_status)
    for action, text in HELP.items():
        command = commands.add_parser(action, help=text)
        command.add_argument("--reason", required=True, help="why: it goes into the event and the audit log")
        command.add_argument("--by", default=account(), help="who decides (default: %(default)s)")
        command.add_argument("--rollout", default="", help="its id: refused for another one")
        command.set_defaults(run=_decide)
    return options


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    settings = deployment()
    try:
        return asked.run(settings, asked)
    except AssertionError:  # a bug of ours keeps its traceback
        raise
    except KeyboardInterrupt:  # nothing is half done: each step of a decision is taken up by the next tick
        return 130
    except Exception as error:  # boundary: a person at a terminal; routers and stores have errors of their own
        print(f"{asked.command}: {error} ({type(error).__name__})", file=sys.stderr)
        return FAILED


def _status(settings: Deployment, asked: argparse.Namespace) -> int:
    report = read_status(settings)
    then = read_deployment(time.time()).next.command
    lines = view(report, time.time(), terminal_width(), sys.stdout.isatty(), then)
    print(report.model_dump_json(indent=2) if asked.json else "\n".join(lines))
    return DONE


def view(report: RolloutStatus, now: float, width: int = 80, colour: bool = False, then: str = "") -> Iterator[str]:
    """The picture, no line wider than `width` but for the commands, which are there to be copied. `then`: the next."""
    phase = report.state.phase
    yield paint(f"{report.model}: {str(phase).replace('_', ' ').upper()}", PHASES.get(phase, CYAN), colour)
    if rows := arm_rows(report):
        yield from ("", *_table(rows, width))
    yield ""
    for name, text in sentences(report, now):
        yield from named(name, text, width)
    if then and not then.endswith(f"{COMMAND} status"):
        yield from named("next", then)
    for action in report.decisions:
        wants = "--by NAME --reason 'WHY'" if action == "approve" else "--reason 'WHY'"
        yield from named("or", typed(f"{COMMAND} {action} --rollout {report.state.rollout} {wants}"))


def _table(rows: list[ArmRow], width: int) -> Iterator[str]:
    """Both arms in columns, and the notes where there is room for all of them."""
    lines = [ArmRow("", "champion", "canary"), *rows]
    one, other = (max(len(row[n]) for row in lines) for n in (1, 2))
    noted = 12 + one + other + 6 + max(len(row.note) for row in rows) <= width
    for name, champion, canary, note in lines:
        yield f"{name:<12}{champion:<{one}}   {canary:<{other}}   {note if noted else ''}".rstrip()


def _decide(settings: Deployment, asked: argparse.Namespace) -> int:
    decision = RolloutDecision(action=asked.command, reason=asked.reason, by=asked.by, rollout=asked.rollout)
    done = decide(rollout_ports(settings), decision, time.time())
    print("\n".join(outcome_lines(decision, done)))
    return exit_code(decision, done)


def frozen(of: Deployment) -> str:
    """The overrides that say otherwise than the policy of the rollout that runs, and what to do; "" without one."""
    state = read_state(of.store(), of.recipe().base_model.name)
    if not state.active:
        return ""
    asked = {each.partition("=")[0] for each in of.overrides}
    changes = (f"rollout.{each}" for each in differences(state.opened.policy, of.recipe().rollout))
    said = "; ".join(each for each in changes if each.partition(":")[0] in asked)
    return f"Rollout {state.rollout} keeps its policy ({said}). Launch without it, or abort and reopen." if said else ""


def outcome_lines(decision: RolloutDecision, done: Tick) -> Iterator[str]:
    """What a decision led to, and what to do next."""
    state = done.state
    for error in done.errors:
        yield f"Not everything follows yet, the next look tries again: {error}"
    if done.refused:
        yield f"Nothing was done: {done.refused}."
        return
    if decision.action in TO_ZERO and state.phase is Phase.ROLLING_BACK:
        yield f"Rollout {state.rollout} is to go back to 0%, and the router does not read that yet."
    else:
        yield f"Rollout {state.rollout} is {state.phase}, with {state.canary_weight}% on the canary: {state.reason}."
    yield f"  next: {read_deployment(time.time()).next.command}"


def exit_code(decision: RolloutDecision, done: Tick) -> int:
    """0, 1 when it was refused, 2 when the router does not read 0% and should."""
    if done.refused:
        return REFUSED
    return FAILED if decision.action in TO_ZERO and done.state.phase is Phase.ROLLING_BACK else DONE
