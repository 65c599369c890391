"""`status`: where the rollout stands, what was measured, why, and what may be typed next."""

import argparse
import shutil
import sys
import time

from assets.resources import Deployment
from assets.rollout import read_status
from jobs.rollout import DONE, AddCommand
from jobs.rollout.view import view


def add_to(add: AddCommand) -> None:
    command = add("status", help="where it stands, what was measured, what may be decided")
    command.add_argument("--json", action="store_true", help="the same as one JSON object")
    command.set_defaults(run=_status)


def terminal_width() -> int:
    """Columns of the terminal; of a pipe, those that a line of a log may have."""
    return shutil.get_terminal_size((120, 24)).columns


def _status(settings: Deployment, asked: argparse.Namespace) -> int:
    report = read_status(settings)
    lines = view(report, time.time(), terminal_width(), sys.stdout.isatty())
    print(report.model_dump_json(indent=2) if asked.json else "\n".join(lines))
    return DONE
