"""Suites from traces: generations of items below `evaluation/suites/<name>/<generation>/`; the newest is asked. The
manifest has the sha256 of each line of `items.jsonl`: lines may go, none can come in or change."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import AwareDatetime, Field, ValidationError

from evals.suites.suite import Item
from pipeline.core import layout
from pipeline.core.removal import Removal, of_lines
from pipeline.core.storage import Record, Store, digest_json
from pipeline.recipe.suites import TracesSuite

MAX_EMPTIED_SHARE = 0.05
"""Of a generation's clusters: with fewer left, its items are no sample of what was frozen any more."""
ITEMS, MANIFEST = "items.jsonl", "manifest.json"


class FrozenItem(Record):
    """An item, and the governed row that it is from: there its consent is asked for again."""

    item: Item
    day: str
    trace_id: str
    observation_id: str
    tenant_id: str | None = None


class Generation(Record):
    """What was frozen at one time. `lines`: sha256 of each line, in the file's order."""

    number: int
    frozen: AwareDatetime
    lines: tuple[str, ...]
    clusters: int
    left_out: dict[str, int] = Field(default={})
    """Rows and prompts that could not be drawn, by reason."""

    def digest(self) -> str:
        return digest_json([self.number, *self.lines])


class Frozen(NamedTuple):
    """A generation, and what is still there of its items."""

    generation: Generation
    items: tuple[FrozenItem, ...]

    @property
    def emptied(self) -> float:
        """Share of the clusters that were frozen and have no item left."""
        left = len({each.item.cluster for each in self.items})
        return 1 - left / self.generation.clusters

    @property
    def is_emptied(self) -> bool:
        """Whether too much was erased for a verdict."""
        return not self.items or self.emptied > MAX_EMPTIED_SHARE


def items(section: TracesSuite, store: Store) -> tuple[tuple[Item, ...], str]:
    """The newest generation's items, and its digest. Raises ValueError where none is left."""
    newest = latest(store, section.name)
    if newest is None:
        raise ValueError(
            f"The suite {section.name} has not been frozen yet: materialise preference_dataset, which draws it from "
            "the iteration's labelled traces."
        )
    if not newest.items:
        raise ValueError(
            f"The suite {section.name} has no item left: all of them were erased. Begin a new iteration, which freezes "
            "other ones."
        )
    return tuple(each.item for each in newest.items), newest.generation.digest()


def latest(store: Store, name: str) -> Frozen | None:
    """The newest generation. Raises ValueError where a file of it cannot be read, or is not as it was frozen."""
    folders = _generations(store, name)
    return read(store, folders[-1]) if folders else None


def read(store: Store, folder: Path) -> Frozen:
    """Raises ValueError as `latest` does."""
    generation = store.read(f"{folder.relative_to(store.root)}/{MANIFEST}", Generation)
    path = folder / ITEMS
    if generation is None or not path.is_file():
        raise ValueError(f"{folder} lacks {MANIFEST} or {ITEMS}. Restore it from a backup.")
    read_items: list[FrozenItem] = []
    left = set(generation.lines)
    for number, line in enumerate(_lines(path), start=1):
        if (digest := _digest(line)) not in left:
            raise ValueError(f"Line {number} of {path} is not one that was frozen. Restore the file from a backup.")
        left.remove(digest)
        read_items.append(FrozenItem.model_validate_json(line))
    return Frozen(generation, tuple(read_items))


def publish(store: Store, name: str, generation: Generation, frozen_items: Sequence[FrozenItem]) -> None:
    """Write a generation in one step; `lines` of it are put in. One that is there stands."""
    lines = [each.model_dump_json().encode() for each in frozen_items]
    generation = generation.model_copy(update={"lines": tuple(map(_digest, lines))})
    with store.staged(f"{layout.FROZEN_SUITES}/{name}/{generation.number:04d}") as folder:
        (folder / ITEMS).write_bytes(b"".join(line + b"\n" for line in lines))
        (folder / MANIFEST).write_text(generation.model_dump_json(indent=2) + "\n", encoding="utf-8")


def removals(store: Store, ids: Collection[str]) -> Iterator[Removal]:
    """These items in every generation of every suite."""
    for path in _files(store):
        yield from of_lines(store, path, lambda line: _parsed(line).item.id in ids)


def ids_of(store: Store, principals: Collection[str]) -> set[str]:
    """The items of these principals in any generation of any suite."""
    found: set[str] = set()
    for path in _files(store):
        try:
            every = [_parsed(line) for line in _lines(path)]
        except ValidationError as error:
            raise ValueError(f"{path} is not one frozen item a line ({error}). Restore it from a backup.") from error
        found |= {each.item.id for each in every if each.item.user_id in principals}
    return found


def _files(store: Store) -> list[Path]:
    return sorted(store.path(layout.FROZEN_SUITES).glob(f"*/[0-9]*/{ITEMS}"))


def _parsed(line: bytes) -> FrozenItem:
    return FrozenItem.model_validate_json(line)


def _generations(store: Store, name: str) -> list[Path]:
    return sorted(store.path(layout.FROZEN_SUITES, name).glob("[0-9]*"))


def _lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().split(b"\n") if line]


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
