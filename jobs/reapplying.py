"""`pt governance forgotten` and `reapply`: who is forgotten, to be forgotten again after a backup was restored."""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from assets.anchors import forgotten_elsewhere
from assets.resources import Deployment
from jobs.anchoring import command_instance
from pipeline.erasure.reapply import reapply
from pipeline.traces.erased import ErasedUser, ErasedUsers, erased_users


def show(settings: Deployment, asked: argparse.Namespace) -> int:
    print(erased_users(settings.store()).model_dump_json(indent=2))
    return 0


def run(settings: Deployment, asked: argparse.Namespace) -> int:
    from jobs.governance import forget_user  # which has this module among its commands

    users = _of_file(Path(asked.file)) if asked.file else _of_instance(settings)

    def log(line: str) -> None:
        print(line, file=sys.stderr)

    def forget(user: str, since: datetime | None) -> None:
        forget_user(settings, user, since, log)

    here = reapply(settings.stage(log), users, datetime.now(UTC), forget)
    fields = {"users": len(users), "here": here}
    line = f"{len(users)} users are on the list; {here} of them had rows here, which are erased again."
    print(json.dumps(fields, indent=2) if asked.json else line)
    return 0


def _of_file(path: Path) -> tuple[ErasedUser, ...]:
    try:
        return ErasedUsers.model_validate_json(path.read_text()).users
    except ValueError as error:
        raise ValueError(f"{path} is not what `pt governance forgotten` prints ({error}).") from error


def _of_instance(settings: Deployment) -> tuple[ErasedUser, ...]:
    with command_instance() as instance:
        return tuple(forgotten_elsewhere(instance, settings.store()))
