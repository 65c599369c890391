"""How an iteration began and ended: a record each, with its place among all. The outcome is written last, so after a
crash the iteration goes on."""

import time
from typing import Literal

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Record, Store

Ending = Literal["not trained", "stopped", "refused", "held", "registered", "rollout"]
"""`stopped`: by the training itself. `held`: the candidate passed and waits for a person. `registered`: it passed, and
the deployment has no router to roll it out by."""
ORDER_LOCK = f"{layout.ITERATIONS}/order.lock"


class IterationBeginning(Record):
    """That an iteration was begun: `place` among all of them, `at` in seconds since 1970. A copy or a backup need not
    keep the times of files."""

    place: int
    at: float


class IterationOutcome(IterationBeginning):
    """`detail` says why, in a sentence or two."""

    ending: Ending
    detail: str


def begin(store: Store, iteration: Iteration) -> None:
    name = iteration.path(layout.BEGUN)
    if not store.path(name).exists():
        with store.alone(ORDER_LOCK):
            store.create(name, IterationBeginning(place=_next_place(store, layout.BEGUN), at=time.time()))


def conclude(store: Store, iteration: Iteration, ending: Ending, detail: str) -> None:
    """Record the ending once; a second call changes nothing, but that a candidate that was held, or registered alone,
    may yet be rolled out."""
    name = iteration.path(layout.OUTCOME)
    with store.alone(ORDER_LOCK):
        place = _next_place(store, layout.OUTCOME)
        ended = IterationOutcome(ending=ending, detail=detail, place=place, at=time.time())
        before = outcome(store, iteration)
        if ending == "rollout" and before is not None and before.ending in ("held", "registered"):
            store.write(name, ended)
        else:
            store.create(name, ended)


def outcome(store: Store, iteration: Iteration) -> IterationOutcome | None:
    return store.read(iteration.path(layout.OUTCOME), IterationOutcome)


def _next_place(store: Store, file: str) -> int:
    kind = IterationOutcome if file == layout.OUTCOME else IterationBeginning
    names = (layout.iteration(path.parent.name, file) for path in store.path(layout.ITERATIONS).glob(f"*/{file}"))
    return 1 + max((each.place for name in names if (each := store.read(name, kind)) is not None), default=-1)
