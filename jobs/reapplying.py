"""`pt governance forgotten` and `reapply FILE`: who is forgotten, to be forgotten again after a backup was restored."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from assets.resources import Deployment
from pipeline.governance.erasure.reapply import reapply
from pipeline.traces.erased import ErasedUsers, erased_users


def show(settings: Deployment, asked: argparse.Namespace) -> int:
    print(erased_users(settings.store()).model_dump_json(indent=2))
    return 0


def run(settings: Deployment, asked: argparse.Namespace) -> int:
    from jobs.governance import forget_user  # which has this module among its commands

    path = Path(asked.file)
    try:
        users = ErasedUsers.model_validate_json(path.read_text()).users
    except ValueError as error:
        raise ValueError(f"{path} is not what `pt governance forgotten` prints ({error}).") from error

    def log(line: str) -> None:
        print(line, file=sys.stderr)

    def forget(user: str, since: datetime | None) -> None:
        forget_user(settings, user, since, log)

    here = reapply(settings.stage(log), users, datetime.now(UTC), forget)
    print(f"{len(users)} users are on the list; {here} of them had rows here, which are erased again.")
    return 0
