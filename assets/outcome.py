"""How an iteration began and ended: a record each, with its place among those of all iterations.

The outcome is written last, so that a crash before it leaves an iteration that goes on. Places and times are in the
records, because a copy or a backup need not keep the times of files. Roots of before have records without them, which
come first, by the times of their files.
"""

import time
from typing import Literal

from pydantic import Field

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Record, Store

Ending = Literal["not trained", "stopped", "refused", "held", "registered", "rollout"]
"""`stopped`: by the training itself. `held`: the candidate passed and waits for a person. `registered`: it passed, and
the deployment has no router to roll it out by."""
ORDER_LOCK = f"{layout.ITERATIONS}/order.lock"


class OrderedRecord(Record):
    """`place`: how many records of this kind were there when it came; None of one that was written without."""

    place: int | None = Field(default=None, exclude_if=lambda place: place is None)
    at: float | None = Field(default=None, exclude_if=lambda at: at is None)
    """When it came, in seconds since 1970."""


class IterationBeginning(OrderedRecord):
    """That an iteration was begun."""


class IterationOutcome(OrderedRecord):
    """`detail` says why, in a sentence or two."""

    ending: Ending
    detail: str


class PlacedFile(Record):
    """Where a record stands in the order of its kind."""

    place: int
    """-1 of one that was written without."""
    at: float


def begin(store: Store, iteration: Iteration) -> None:
    """Record once that the iteration was begun."""
    name = iteration.path(layout.BEGUN)
    if not store.path(name).exists():
        with store.alone(ORDER_LOCK):
            place = _next_place(store, layout.BEGUN, IterationBeginning)
            store.create(name, IterationBeginning(place=place, at=time.time()))


def conclude(store: Store, iteration: Iteration, ending: Ending, detail: str) -> None:
    """Record the ending once; a second call changes nothing, but that a candidate that was held, or registered alone,
    may yet be rolled out."""
    name = iteration.path(layout.OUTCOME)
    with store.alone(ORDER_LOCK):
        place = _next_place(store, layout.OUTCOME, IterationOutcome)
        ended = IterationOutcome(ending=ending, detail=detail, place=place, at=time.time())
        before = outcome(store, iteration)
        if ending == "rollout" and before is not None and before.ending in ("held", "registered"):
            store.write(name, ended)
        else:
            store.create(name, ended)


def outcome(store: Store, iteration: Iteration) -> IterationOutcome | None:
    """How the iteration ended, or None while something is left to do."""
    return store.read(iteration.path(layout.OUTCOME), IterationOutcome)


def placed(store: Store, name: str, kind: type[OrderedRecord]) -> PlacedFile | None:
    """Where a record stands, by its own word, else by the file's time; None where it is not there.

    Raises ValueError where it cannot be read.
    """
    record = store.read(name, kind)
    if record is None:
        return None
    at = store.path(name).stat().st_mtime if record.at is None else record.at
    return PlacedFile(place=-1 if record.place is None else record.place, at=at)


def _next_place(store: Store, file: str, kind: type[OrderedRecord]) -> int:
    names = (layout.iteration(path.parent.name, file) for path in store.path(layout.ITERATIONS).glob(f"*/{file}"))
    return 1 + max((place.place for name in names if (place := placed(store, name, kind)) is not None), default=-1)
