"""Models that may not be promoted, because they learned from data that had to be forgotten: one record an erasure. What
serves keeps serving, and what was trained on top of a blocked champion is not blocked: it never saw the data."""

from collections.abc import Collection

from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.rollout.record import ModelVersion


class ErasureBlock(Record):
    """What one erasure blocks. An iteration that has no model yet is blocked with all that it may still make."""

    proof: str
    digests: tuple[str, ...]
    iterations: tuple[str, ...]

    @property
    def reason(self) -> str:
        return f"it learned from data that erasure {self.proof} removed"


def block(store: Store, new_block: ErasureBlock) -> None:
    """Put the block on record, and into the folder of every training that it is about, which its trainer reads."""
    store.write(f"{layout.BLOCKS}/{new_block.proof}.json", new_block)
    for id in new_block.iterations:
        store.write(layout.iteration(id, layout.TRAINING, layout.BLOCKED_FILE), new_block)


def blocking(store: Store, iteration: str, digests: Collection[str] = ()) -> list[ErasureBlock]:
    """The blocks of an iteration, or of what it made."""
    return [each for each in blocks(store) if iteration in each.iterations or not set(digests).isdisjoint(each.digests)]


def blocks(store: Store) -> list[ErasureBlock]:
    names = sorted(f"{layout.BLOCKS}/{path.name}" for path in store.path(layout.BLOCKS).glob("*.json"))
    return [each for name in names if (each := store.read(name, ErasureBlock))]


def blocked(store: Store, version: ModelVersion) -> str:
    """Why this version may not be promoted, or nothing."""
    for each in blocking(store, version.iteration, (version.model.digest, version.adapter.digest)):
        return f"version {version.version} is blocked: {each.reason}"
    return ""
