"""What the evaluation keeps of a person: answers, judgements, bundles and, last, items of frozen suites. These say
which items are the person's, so that the same call heals a kill at any point."""

import shutil
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from evals import bundle, judged
from evals.suites import frozen
from pipeline.core import layout
from pipeline.core.removal import Place, of_files
from pipeline.core.storage import Store
from pipeline.serving import inference


def places(store: Store, principals: Collection[str]) -> list[Place]:
    """Where the evaluation has items of these principals, in the order of removal. Bundles that have some go whole.

    Raises ValueError where a frozen suite or a bundle cannot be read.
    """
    items = frozen.ids_of(store, principals).union(*(bundle.items_of(path, principals) for path in _bundles(store)))
    answers = of_files("answers of evaluations", partial(inference.removals, store, items))
    return [
        Place(answers.name, answers.count, lambda: (_sweep(store), answers.remove())),
        of_files("judgements", partial(judged.removals, store, items)),
        of_files(
            "evidence bundles",
            lambda: (each for path in _bundles(store) for each in bundle.removals(store, path, principals)),
        ),
        of_files("frozen suites", partial(frozen.removals, store, items)),
    ]


def _sweep(store: Store) -> None:
    """Delete what killed writers left. Nobody publishes meanwhile: the exclusive lock is held."""
    for path in list(_unfinished(store)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _bundles(store: Store) -> list[Path]:
    return sorted(store.path(layout.ITERATIONS).glob(f"*/{layout.EVIDENCE}"))


def _unfinished(store: Store) -> Iterator[Path]:
    yield from store.path(layout.FROZEN_SUITES).glob("*/.*")
    yield from store.path(layout.FROZEN_SUITES).glob("*/[0-9]*/.*")
    yield from store.path(layout.ANSWERS).glob("*/.*")
    yield from store.path(layout.ITERATIONS).glob(f"*/.{layout.EVIDENCE}.*")
