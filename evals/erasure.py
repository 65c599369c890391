"""Forgetting a person in everything that the evaluation keeps: frozen suites, journals of answers, evidence bundles.

Owns the order: journals first, bundles, and the frozen suites last, because these tell which items are the person's. A
kill at any point is healed by the same call. A bundle keeps its digest and its verdict (evals/erasable.py),
unless its counts go as well (evals/reduction.py). Called
under the exclusive lock of `pipeline.erasure`, which proves it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from evals import bundle, judgements, reduction
from evals.suites import frozen
from pipeline import layout
from pipeline.rewards.feedback import principal
from pipeline.serving import journal
from pipeline.storage import Store, names_nobody


def forget(
    store: Store,
    user_ids: Collection[str],
    names: Callable[[bytes], bool] = names_nobody,
    erase_counts: bool = False,
) -> Iterator[str]:
    """Remove these users' items, those that `names` one of them, the answers to them and the texts of both; yields
    `name: n lines` of each file before it is written.

    `erase_counts`: bundles keep no count of these answers either, nor of those of whoever was forgotten before.

    Raises ValueError where a frozen suite or a bundle cannot be read.
    """
    users = {principal(id, None, "") for id in user_ids}
    for name in store.path(layout.ITERATIONS).glob(f"*/{reduction.REPLACED}"):
        reduction.restore(name.with_name(layout.EVIDENCE))
    bundles = sorted(store.path(layout.ITERATIONS).glob(f"*/{layout.EVIDENCE}"))
    for path in _unfinished(store, bundles):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    own = [bundle.items_of(path, users) for path in bundles]
    items = frozen.ids_of(store, users, names).union(*own)
    yield from journal.erase(store, items, names)
    yield from judgements.erase(store, items)
    for path in bundles:
        if erase_counts:
            lines = reduction.reduce(store, path, items | bundle.items_naming(path, names))
        else:
            lines = bundle.erase(path, items, names)
        yield from (f"{path.relative_to(store.root)}/{change}" for change in lines)
        if erase_counts:
            reduction.settle(store, path)
    yield from frozen.remove(store, items)


def _unfinished(store: Store, bundles: Collection[Path]) -> Iterator[Path]:
    """What killed writers left: nobody publishes here while the exclusive lock is held."""
    yield from store.path(layout.FROZEN_SUITES).glob("*/.*")
    yield from store.path(layout.FROZEN_SUITES).glob("*/[0-9]*/.*")
    yield from store.path(layout.ANSWERS).glob("*/.*")
    for path in bundles:
        yield from path.glob("*/.*")
    yield from store.path(layout.ITERATIONS).glob(f"*/.{layout.EVIDENCE}.*")
