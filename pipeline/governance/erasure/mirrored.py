"""Copies of checkpoints in `training.checkpoints.mirror` that learned from a forgotten user's rows: they are deleted.

Owns which mirrors an iteration's training had and what a proof says of them. Copies go, while the models here stay and
are blocked: nobody asks a block before a file in a bucket. Refuses to call a mirror clean that it cannot list, that
does not look as the trainer left it, or that a trainer at work may still write to.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from pipeline.core import layout
from pipeline.core.removal import Place
from pipeline.core.storage import Store
from pipeline.rollout.blocks import blocks
from pipeline.training.checkpoints.mirror import MirrorFolder, MirrorPlace, mirror_folder, place_of, places_of
from pipeline.training.journal import read_journal
from pipeline.training.plan import TrainingPlan


def remove(store: Store, iterations: Collection[str]) -> Iterator[str]:
    """Close the mirrors to these iterations' trainings (ids) and delete what is in them; yields each checkpoint's name
    before it goes. What a store refuses is for `remains` to say. Raises ValueError for a plan that cannot be read."""
    for id in sorted(iterations):
        for folder in _folders(store, id):
            try:
                if _is_as_left(store, id, folder):
                    folder.close(id)
                    yield from (f"{_name(store, folder)}/{step}" for step in folder.steps())
                    folder.clear()
            except OSError:
                continue


def place(store: Store, iterations: Collection[str]) -> Place:
    """The copies, each counted as one; mirrors that cannot be listed are for `remains` to say."""

    def count() -> dict[str, int]:
        names: dict[str, int] = {}
        for id in sorted(iterations):
            for folder in _folders(store, id):
                with suppress(OSError):
                    if _is_as_left(store, id, folder):
                        names |= {f"{_name(store, folder)}/{step}": 1 for step in folder.steps()}
        return names

    return Place("copies of checkpoints in mirrors", count, lambda: list(remove(store, iterations)))


def remains(store: Store, iterations: Collection[str]) -> list[str]:
    """What the mirrors of these iterations (ids) hold after all, or why that is not known, each with what to do."""
    lines = [line for id in sorted(iterations) for folder in _folders(store, id) for line in _left(store, id, folder)]
    return [line.removeprefix(f"{store.root}/") for line in lines]


def outside(store: Store, iterations: Collection[str]) -> tuple[str, ...]:
    """Mirrors in stores of which nobody knows here what they keep, each with what to ask of its owner."""
    places = [(id, place) for id in sorted(iterations) for place in _places(store, id)]
    return tuple(_asked(place.uri, id) for id, place in places if mirror_folder(place.uri, place.folder) is None)


def tidy(store: Store, log: Callable[[str], None]) -> None:
    """Clear the mirrors of all blocked iterations again: a trainer that was killed may have left its last upload."""
    for id in sorted({id for each in blocks(store) for id in each.iterations}):
        for name in remove(store, [id]):
            log(f"{name}, of a training that an erasure blocked, is deleted")
        for line in remains(store, [id]):
            log(f"still in a mirror: {line}")


def _left(store: Store, id: str, folder: MirrorFolder) -> Iterator[str]:
    try:
        if not _is_as_left(store, id, folder):
            yield (
                f"{folder.name}: nothing of iteration {id}'s training is there, not even writer.json. Is it mounted, "
                "and the same account? If it was deleted, leave an empty writer.json there; then forget again"
            )
            return
        folder.close(id)
        yield from folder.clear()
    except OSError as error:
        yield f"{folder.name}: {error}; then forget again"
    if _trains(store, id):
        yield f"{folder.name}: iteration {id} is being trained, and an upload may end after this. Forget again then"


def _is_as_left(store: Store, id: str, folder: MirrorFolder) -> bool:
    """A disk that is not mounted and a wrong account look empty, and so does a training that saved nothing."""
    journal = store.path(layout.iteration(id, layout.JOURNAL))
    return folder.is_begun() or bool(folder.steps()) or all(each.kind != "saved" for each in read_journal(journal))


def _trains(store: Store, id: str) -> bool:
    try:
        with store.path(layout.iteration(id, layout.TRAINING), "writer.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _name(store: Store, folder: MirrorFolder) -> str:
    """Of one below the data root as of any file there: no record says where the root lies."""
    return folder.name.removeprefix(f"{store.root}/")


def _folders(store: Store, id: str) -> list[MirrorFolder]:
    folders = [mirror_folder(place.uri, place.folder) for place in _places(store, id)]
    return [each for each in folders if each is not None]


def _places(store: Store, id: str) -> list[MirrorPlace]:
    """Those on record; of an iteration of before there was a record the plan's own."""
    if places := places_of(store, id):
        return list(places)
    plan = store.read(layout.iteration(id, layout.PLAN), TrainingPlan)
    if plan is not None and plan.data is not None and (mirror := plan.training.checkpoints.mirror):
        return [place_of(mirror, plan.digest())]
    return []


def _asked(uri: str, id: str) -> str:
    return f"{uri}: delete the checkpoints of iteration {id}, which learned from the user's rows"
