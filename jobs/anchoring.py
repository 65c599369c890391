"""The Dagster instance that commands typed here belong to, and the audit log's anchors in it.

Owns that a command which decides or forgets anchors the log when it ends, and that an instance which is not there, or
cannot be reached, is said and fails nobody.
"""

import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import dagster as dg

from assets.anchors import anchors, bucket, drop_anchor
from assets.environment import environment
from assets.resources import Deployment
from pipeline.anchor_bucket import UnlockedBucket
from pipeline.audit_anchors import Anchor, to_anchor


@contextmanager
def command_instance() -> Generator[dg.DagsterInstance]:
    """Of DAGSTER_HOME, else of the working directory. Raises FileNotFoundError where none has been used yet."""
    named = environment().dagster_home
    home = Path(named or Path.cwd())
    if not (home / "dagster.yaml").exists() or not (named or (home / ".dagster").exists()):
        raise FileNotFoundError(f"no Dagster instance was used in {home}, and DAGSTER_HOME names no other")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def anchors_everywhere(settings: Deployment) -> tuple[list[Anchor], list[str]]:
    """The anchors of every data root in Dagster and in the bucket, and why there are none of a place that cannot be
    asked. Raises UnlockedBucket for a bucket that protects nothing."""
    anchored: list[Anchor] = []
    notes: list[str] = []
    try:
        with command_instance() as instance:
            anchored += anchors(instance)
    except Exception as error:  # boundary: an instance elsewhere, and whatever its database raises
        notes.append(f"Compared with no anchor: Dagster's instance cannot be read ({error}).")
    try:
        if (locked := bucket()) is not None:
            anchored += locked.anchors(str(settings.store().root))
    except UnlockedBucket:
        raise
    except ValueError as error:
        notes.append(f"Compared with no anchor of the bucket: {error}")
    return anchored, notes


def anchor(settings: Deployment) -> None:
    """Anchor what the command has logged, if anything."""
    try:
        store = settings.store()
        if to_anchor(store) is None:
            return
        with ExitStack() as stack:
            instance = None
            with suppress(FileNotFoundError):  # `verify` says that there is no anchor
                instance = stack.enter_context(command_instance())
            drop_anchor(instance, store)
    except Exception as error:  # boundary: whatever the instance's database raises
        print(f"The audit log's head is not anchored: {error} ({type(error).__name__})", file=sys.stderr)
