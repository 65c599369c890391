"""What the evaluation keeps of a person: items of frozen suites, answers to them, judgements, lines of bundles.

A bundle keeps its digest and its verdict (evals/erasable.py), unless its counts go as well (evals/reduction.py). The
frozen suites come last: they tell which items are the person's, so a kill at any point is healed by the same call.
`pipeline.governance.erasure` removes from these places under its exclusive lock, and proves it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from evals import bundle, judgements, reduction
from evals.suites import frozen
from pipeline.core import layout
from pipeline.core.removal import Place, Removal, of_files
from pipeline.core.storage import Store
from pipeline.serving import journal


def places(store: Store, principals: Collection[str], erase_counts: bool = False) -> list[Place]:
    """Where the evaluation has items of these principals, in the order of removal.

    `erase_counts`: bundles keep no count of these answers either, nor of those of whoever was forgotten before. Raises
    ValueError where a frozen suite or a bundle cannot be read.
    """
    items = frozen.ids_of(store, principals).union(*(bundle.items_of(path, principals) for path in _bundles(store)))
    answers = of_files("answers of evaluations", partial(journal.removals, store, items))
    return [
        Place(answers.name, answers.count, lambda: (_sweep(store), answers.remove())),
        of_files("judgements", partial(judgements.removals, store, items)),
        of_files("evidence bundles", partial(_of_bundles, store, items, erase_counts)),
        of_files("frozen suites", partial(frozen.removals, store, items)),
    ]


def _sweep(store: Store) -> None:
    """Delete or finish what killed writers left. Nobody publishes meanwhile: the exclusive lock is held."""
    for name in store.path(layout.ITERATIONS).glob(f"*/{reduction.REPLACED}"):
        reduction.restore(name.with_name(layout.EVIDENCE))
    for path in _bundles(store):
        reduction.settle(store, path)
    for path in list(_unfinished(store)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _of_bundles(store: Store, items: Collection[str], erase_counts: bool) -> Iterator[Removal]:
    removals = reduction.removals if erase_counts else bundle.removals
    for path in _bundles(store):
        yield from removals(store, path, items)


def _bundles(store: Store) -> list[Path]:
    return sorted(store.path(layout.ITERATIONS).glob(f"*/{layout.EVIDENCE}"))


def _unfinished(store: Store) -> Iterator[Path]:
    yield from store.path(layout.FROZEN_SUITES).glob("*/.*")
    yield from store.path(layout.FROZEN_SUITES).glob("*/[0-9]*/.*")
    yield from store.path(layout.ANSWERS).glob("*/.*")
    for path in _bundles(store):
        yield from path.glob("*/.*")
    yield from store.path(layout.ITERATIONS).glob(f"*/.{layout.EVIDENCE}.*")
