"""How an iteration ended: one record, written last, so that a crash before it leaves an iteration that goes on."""

from typing import Literal

from pipeline.iteration import Iteration
from pipeline.storage import Record, Store

Ending = Literal["not trained", "refused", "rollout"]


class Outcome(Record):
    """`detail` says why, in a sentence or two."""

    ending: Ending
    detail: str


def conclude(store: Store, iteration: Iteration, ending: Ending, detail: str) -> None:
    """Record the ending once; a second call changes nothing."""
    store.create(iteration.path("outcome.json"), Outcome(ending=ending, detail=detail))


def outcome(store: Store, iteration: Iteration) -> Outcome | None:
    """How the iteration ended, or None while something is left to do."""
    return store.read(iteration.path("outcome.json"), Outcome)
