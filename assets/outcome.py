"""How an iteration ended: one record, written last, so that a crash before it leaves an iteration that goes on."""

from typing import Literal

from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.storage import Record, Store

Ending = Literal["not trained", "stopped", "refused", "held", "rollout"]
"""`stopped`: by the training itself. `held`: the candidate passed and waits for a person."""


class IterationOutcome(Record):
    """`detail` says why, in a sentence or two."""

    ending: Ending
    detail: str


def conclude(store: Store, iteration: Iteration, ending: Ending, detail: str) -> None:
    """Record the ending once; a second call changes nothing, but that a held candidate may yet be rolled out."""
    ended, name = IterationOutcome(ending=ending, detail=detail), iteration.path(layout.OUTCOME)
    before = outcome(store, iteration)
    if ending == "rollout" and before is not None and before.ending == "held":
        store.write(name, ended)
    else:
        store.create(name, ended)


def outcome(store: Store, iteration: Iteration) -> IterationOutcome | None:
    """How the iteration ended, or None while something is left to do."""
    return store.read(iteration.path(layout.OUTCOME), IterationOutcome)
