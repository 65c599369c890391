"""`watch`: the status, drawn anew in place until the rollout is over; without a terminal, a line when it changes."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable

from assets.resources import Deployment
from assets.rollout import read_status
from jobs.rollout import DONE, FAILED, AddCommand
from jobs.rollout.status import terminal_width
from jobs.rollout.view import view
from pipeline.rollout.record import TERMINAL, Phase
from pipeline.rollout.status import RolloutStatus

OTHER_SCREEN, BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""A screen of its own without a cursor, as an editor has, and the way back to the lines before it."""
HOME, REST_OF_LINE, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
FAULTS = 10
"""Looks in a row that may fail, at a busy store or a router that restarts, before the watch ends."""


def add_to(add: AddCommand) -> None:
    command = add("watch", help="the status, live, until the rollout is over (Ctrl-C ends it)")
    command.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="default: %(default)s")
    command.set_defaults(run=_watch)


def follow(
    read: Callable[[], RolloutStatus], show: Callable[[RolloutStatus | None, str], None], sleep: Callable[[], None]
) -> RolloutStatus | None:
    """Show each status until no rollout is active; the last one, or None when it cannot be read any more.

    `show` gets the newest status and, while reading fails, why.
    """
    report, faults = None, 0
    while True:
        try:
            report, faults = read(), 0
            show(report, "")
        except (OSError, ValueError) as error:
            faults += 1
            show(report, str(error))
            if faults > FAULTS:
                return None
        if not faults and report is not None and (report.phase in TERMINAL or report.phase is Phase.IDLE):
            return report
        sleep()


def change_line(report: RolloutStatus) -> str:
    """What a line without a terminal says; it is printed when it changes."""
    if not report.rollout:
        return f"{report.model} no rollout{' yet' if report.routed else f': {report.router_reason}'}"
    return f"{report.model} {report.rollout} {report.phase}, {report.weight}% on the canary: {report.reason}"


def screen(report: RolloutStatus | None, fault: str, width: int, height: int, now: float) -> str:
    """One picture of the whole terminal, drawn over the one before."""
    lines = [] if report is None else list(view(report, now, width, colour=True))
    if fault:
        lines = [f"cannot be read now, this is how it was: {fault}"[:width], *lines]
    shown = lines if len(lines) < height else [*lines[: height - 2], "…"]
    return HOME + "".join(f"{line}{REST_OF_LINE}\n" for line in shown) + BELOW


def _watch(settings: Deployment, asked: argparse.Namespace) -> int:
    live = sys.stdout.isatty()
    try:
        if live:
            sys.stdout.write(OTHER_SCREEN)
        last = follow(lambda: read_status(settings), _draw if live else _changes(), lambda: time.sleep(asked.every))
    finally:
        if live:
            sys.stdout.write(BACK)
            sys.stdout.flush()
    if last is None:
        print(f"The rollout could not be read {FAULTS} times in a row.", file=sys.stderr)
        return FAILED
    if live:
        print("\n".join(view(last, time.time(), terminal_width(), colour=True)))
    return DONE


def _draw(report: RolloutStatus | None, fault: str) -> None:
    size = shutil.get_terminal_size()
    sys.stdout.write(screen(report, fault, size.columns, size.lines, time.time()))
    sys.stdout.flush()


def _changes() -> Callable[[RolloutStatus | None, str], None]:
    before = ""

    def show(report: RolloutStatus | None, fault: str) -> None:
        nonlocal before
        line = f"cannot be read now: {fault}" if fault or report is None else change_line(report)
        if line != before:
            print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)
        before = line

    return show
