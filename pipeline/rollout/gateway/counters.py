"""What each worker has served, recorded and has in flight: a few integers in a file that it maps into its memory.

A worker that is killed leaves its counts behind, so what it served and never recorded shows.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from pipeline.core import layout
from pipeline.core.processes import process_start
from pipeline.core.storage import Record, Store

SERVED, RECORDED, BREAKER_OPEN, IN_FLIGHT = range(4)
"""Places of the counts; those from IN_FLIGHT on are of the slots, in the order of their table."""
_PLACES = 16
SLOTS = _PLACES - IN_FLIGHT


class Counts(Record):
    """The sums over all workers since the gateway's start."""

    served: int
    """Answers that callers got, errors included."""
    recorded: int
    """Of those, the ones whose spans are in a file."""
    breakers_open: int
    """Workers that spare the canary a try at the moment."""
    in_flight: tuple[int, ...]
    """By slot."""
    workers: int
    """That are alive."""


class Counters:
    """The counts of this process: `counters.places[SERVED] += 1`."""

    def __init__(self, store: Store, model_name: str) -> None:
        folder = _folder(store, model_name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{os.getpid()}-{process_start(os.getpid()) or 0}"
        path.write_bytes(bytes(8 * _PLACES))
        with path.open("r+b") as file:
            self.places = memoryview(mmap.mmap(file.fileno(), 8 * _PLACES)).cast("q")


def read_counts(store: Store, model_name: str) -> Counts:
    """The sums; of workers that are dead, what they served and recorded."""
    served = recorded = breakers = workers = 0
    in_flight = [0] * SLOTS
    for path in sorted(_folder(store, model_name).glob("*-*")):
        pid, _, start = path.name.partition("-")
        content = path.read_bytes()
        if len(content) != 8 * _PLACES:  # a worker that is only beginning
            continue
        places = memoryview(content).cast("q")
        served, recorded = served + places[SERVED], recorded + places[RECORDED]
        if (process_start(int(pid)) or 0) == int(start):
            workers += 1
            breakers += places[BREAKER_OPEN]
            in_flight = [count + places[IN_FLIGHT + slot] for slot, count in enumerate(in_flight)]
    return Counts(
        served=served,
        recorded=recorded,
        breakers_open=breakers,
        in_flight=tuple(in_flight),
        workers=workers,
    )


def forget_counts(store: Store, model_name: str) -> None:
    """Begin anew; for who holds the gateway's lock."""
    for path in _folder(store, model_name).glob("*-*"):
        path.unlink()


def _folder(store: Store, model_name: str) -> Path:
    return store.path(layout.gateway(model_name, "counts"))
