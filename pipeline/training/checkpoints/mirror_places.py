"""Where checkpoints of an iteration were ever copied to: the plan names the mirror of now alone.

Owns `iterations/<id>/mirrors.json`, which is written before a trainer can start and outlives `pt retry`.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.core import layout
from pipeline.core.locations import Uri
from pipeline.core.storage import Record, Store


class MirrorPlace(Record):
    """A training's folder in a mirror: the mirror's URI or absolute path, and the folder's name in it."""

    uri: Uri
    folder: str


class MirrorPlaces(Record):
    places: tuple[MirrorPlace, ...] = ()


def place_of(uri: str, plan_digest: str) -> MirrorPlace:
    path = uri.removeprefix("file://")
    return MirrorPlace(uri=uri if "://" in path else str(Path(path).absolute()), folder=plan_digest[:12])


def remember(store: Store, iteration: str, place: MirrorPlace) -> None:
    """Put a place on record, once."""
    recorded = places_of(store, iteration)
    if place not in recorded:
        store.write(layout.iteration(iteration, layout.MIRRORS), MirrorPlaces(places=(*recorded, place)))


def places_of(store: Store, iteration: str) -> tuple[MirrorPlace, ...]:
    """Raises ValueError for a record that cannot be read."""
    record = store.read(layout.iteration(iteration, layout.MIRRORS), MirrorPlaces)
    return record.places if record is not None else ()
