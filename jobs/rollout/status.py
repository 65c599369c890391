"""`status`: where the rollout stands, what was measured, why, and what may be typed next."""

import argparse
import sys
import time
from collections.abc import Iterator

from assets.resources import Deployment, deployment
from assets.rollout import read_status
from jobs.rollout import COMMAND, DONE, AddCommand, look_command
from jobs.screen import CYAN, GREEN, GREY, RED, YELLOW, named, paint, terminal_width
from pipeline.rollout.record import TERMINAL, Phase
from pipeline.rollout.status import RolloutStatus
from pipeline.views.rollout import ArmRow, StageMark, arm_rows, sentences, stage_marks

BAR_WIDTH = 16
SIGNS = {"done": ("✔", GREEN), "now": ("▶", CYAN), "held": ("‖", YELLOW), "undone": ("✘", RED), "next": (" ", GREY)}
PHASES = {
    Phase.HELD: YELLOW,
    Phase.ROLLING_BACK: RED,
    Phase.ROLLED_BACK: RED,
    Phase.ABORTED: RED,
    Phase.PROMOTED: GREEN,
    Phase.SUPERSEDED: GREY,
}


def add_to(add: AddCommand) -> None:
    command = add("status", help="where it stands, what was measured, what may be decided")
    command.add_argument("--json", action="store_true", help="the same as one JSON object")
    command.set_defaults(run=_status)


def view(report: RolloutStatus, now: float, width: int = 80, colour: bool = False) -> Iterator[str]:
    """The picture, no line wider than `width` but for the commands, which are there to be copied."""
    title = f"{report.model}: {str(report.phase).replace('_', ' ').upper()}"
    yield paint(title, PHASES.get(report.phase, CYAN), colour)
    if report.weights:
        yield from ("", *_bars(stage_marks(report), width, colour))
    if rows := arm_rows(report):
        yield from ("", *_table(rows, width))
    yield ""
    for name, text in sentences(report, now):
        yield from named(name, text, width)
    over = report.candidate is None or report.phase in TERMINAL
    yield from named("commands", deployment().launch() if over else look_command())
    for action in report.decisions:
        wants = "--by NAME --reason 'WHY'" if action == "approve" else "--reason 'WHY'"
        yield from named("", f"{COMMAND} {action} --rollout {report.rollout} {wants}")


def _bars(marks: list[StageMark], width: int, colour: bool) -> Iterator[str]:
    """A bar for each weight, filled by its dwell; as many in a line as fit."""
    size = BAR_WIDTH + 9
    in_a_line = max(1, width // size)
    painted: list[str] = []
    for mark in marks:
        filled, (sign, code) = round(mark.done * BAR_WIDTH), SIGNS[mark.progress]
        cell = f"{sign} {mark.weight:>3}% {'█' * filled}{'░' * (BAR_WIDTH - filled)}"
        painted.append(paint(cell.ljust(size), code, colour))
    for first in range(0, len(painted), in_a_line):
        yield "".join(painted[first : first + in_a_line]).rstrip()


def _table(rows: list[ArmRow], width: int) -> Iterator[str]:
    """Both arms in columns, and the notes where there is room for all of them."""
    lines = [ArmRow("", "champion", "canary"), *rows]
    one, other = (max(len(row[n]) for row in lines) for n in (1, 2))
    noted = 12 + one + other + 6 + max(len(row.note) for row in rows) <= width
    for name, champion, canary, note in lines:
        yield f"{name:<12}{champion:<{one}}   {canary:<{other}}   {note if noted else ''}".rstrip()


def _status(settings: Deployment, asked: argparse.Namespace) -> int:
    report = read_status(settings)
    lines = view(report, time.time(), terminal_width(), sys.stdout.isatty())
    print(report.model_dump_json(indent=2) if asked.json else "\n".join(lines))
    return DONE
