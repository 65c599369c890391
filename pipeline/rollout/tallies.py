"""The tally of a stage by unit, an object beside the events: the event that names it holds only its sums.

Written before that event, and named by epoch and content, so a process that died in between leaves an object that
nobody names. Removed once a later event names another one, and for good when the rollout is over.
"""

from __future__ import annotations

from pipeline.core import layout
from pipeline.core.storage import Store, digest_json
from pipeline.rollout.evidence import StageTally
from pipeline.rollout.record import RolloutState


def write_tally(store: Store, model_name: str, epoch: int, tally: StageTally) -> str:
    """Keep the tally that the event of this epoch is to name; returns the name."""
    name = f"{epoch:06d}-{digest_json(tally)[:16]}"
    store.create(_path(model_name, name), tally)
    return name


def read_tally(store: Store, model_name: str, name: str) -> StageTally | None:
    """The tally of that name, or None when it is gone or is not what was written: its sums can't be added to then."""
    try:
        tally = store.read(_path(model_name, name), StageTally)
    except ValueError:
        return None
    return tally if tally is not None and name.endswith(digest_json(tally)[:16]) else None


def drop_tallies(store: Store, model_name: str, state: RolloutState) -> None:
    """Remove what no later event can name: all of them once the rollout is over, else those before the one in use."""
    kept = state.watch.tally if state.active else ""
    for path in store.path(layout.rollout(model_name, "tallies")).glob("[0-9]*.json"):
        old = int(path.name.split("-")[0]) < int(kept.split("-")[0]) if kept else not state.active
        if old:
            path.unlink(missing_ok=True)


def _path(model_name: str, name: str) -> str:
    return layout.rollout(model_name, "tallies", f"{name}.json")
