"""Deletes copies of checkpoints in `training.checkpoints.mirror` that learned from a forgotten user's rows. A mirror is
not clean while it cannot be listed, looks unlike the trainer left it, or a trainer may write to it."""

import fcntl
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from pipeline.core import layout
from pipeline.core.removal import Place
from pipeline.core.storage import Store
from pipeline.rollout.record import blocks
from pipeline.training.checkpoints.mirror import MirrorFolder, mirror_folder, places_of
from pipeline.training.journal import read_journal


def remove(store: Store, iterations: Collection[str]) -> Iterator[str]:
    """Close the mirrors to these iterations' trainings (ids) and delete what is in them; yields each checkpoint's name
    before it goes. `remains` says what a store refuses."""
    for id, folder in folders(store, iterations):
        with suppress(OSError):
            if _is_as_left(store, id, folder):
                folder.close(id)
                yield from _steps(store, folder)
                folder.clear()


def place(store: Store, iterations: Collection[str]) -> Place:
    """The copies, each counted as one; mirrors that cannot be listed are for `remains` to say."""

    def count() -> dict[str, int]:
        names: dict[str, int] = {}
        for id, folder in folders(store, iterations):
            with suppress(OSError):
                names |= dict.fromkeys(_steps(store, folder) if _is_as_left(store, id, folder) else (), 1)
        return names

    return Place("copies of checkpoints in mirrors", count, lambda: list(remove(store, iterations)))


def remains(store: Store, iterations: Collection[str]) -> list[str]:
    """What the mirrors of these iterations (ids) hold after all, or why that is not known, each with what to do."""
    lines = [line for id, folder in folders(store, iterations) for line in _left(store, id, folder)]
    return [line.removeprefix(f"{store.root}/") for line in lines]


def outside(store: Store, iterations: Collection[str]) -> tuple[str, ...]:
    """Mirrors in stores whose driver is not installed, each with what to do."""
    return tuple(
        f"{place.uri}: install its driver and forget again, or delete the checkpoints of iteration {id} there"
        for id in sorted(iterations)
        for place in places_of(store, id)
        if mirror_folder(place.uri, place.folder) is None
    )


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
        with store.path(layout.iteration(id, layout.TRAINING), "writer.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _steps(store: Store, folder: MirrorFolder) -> list[str]:
    """Names of its checkpoints; below the data root as of any file there: no record says where the root lies."""
    return [f"{folder.name}/{step}".removeprefix(f"{store.root}/") for step in folder.steps()]


def folders(store: Store, iterations: Collection[str]) -> Iterator[tuple[str, MirrorFolder]]:
    """The mirrors of these iterations, each with its iteration's id, in stores whose driver is installed."""
    for id in sorted(iterations):
        for place in places_of(store, id):
            if (folder := mirror_folder(place.uri, place.folder)) is not None:
                yield id, folder
