"""`status`: where the rollout stands, what was measured, why, and what may be typed next."""

import argparse
import shutil
import sys
import time

from assets.resources import Deployment
from jobs.rollout import DONE, AddCommand
from assets.traffic import traffic_split
from jobs.rollout.view import view
from pipeline.rollout.record import read_events
from pipeline.rollout.router import Split, Unsettled
from pipeline.rollout.status import RolloutStatus, status


def add_to(add: AddCommand) -> None:
    command = add("status", help="where it stands, what was measured, what may be decided")
    command.add_argument("--json", action="store_true", help="the same as one JSON object")
    command.set_defaults(run=_status)


def read_status(settings: Deployment) -> RolloutStatus:
    """The latest rollout of the deployment's model."""
    store, name = settings.store(), settings.recipe().base_model.name
    return status(name, settings.champion(), read_events(store, name), read_split(settings), time.time())


def read_split(settings: Deployment) -> Split | Unsettled | None:
    """What the router reads; a router that cannot be read is no reason not to show the record."""
    try:
        return traffic_split(settings).read()
    except Exception as error:  # boundary: any router
        return Unsettled(reason=f"nothing: {error}")


def terminal_width() -> int:
    """Columns of the terminal; of a pipe, those that a line of a log may have."""
    return shutil.get_terminal_size((120, 24)).columns


def _status(settings: Deployment, asked: argparse.Namespace) -> int:
    report = read_status(settings)
    lines = view(report, time.time(), terminal_width(), sys.stdout.isatty())
    print(report.model_dump_json(indent=2) if asked.json else "\n".join(lines))
    return DONE
