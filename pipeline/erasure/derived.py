"""Files of the loop's own, outside the lake, that hold users' rows: what was made from a dataset and said of it.

Owns which files of an iteration hold rows: labels, preference data, the trainer's data and what killed attempts left.
Refuses to delete weights: models are blocked instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from pipeline import layout
from pipeline.erasure.affected import iterations
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.search import look_into
from pipeline.registry.model_artifacts import ADAPTER, MODEL
from pipeline.rewards import findings, reviews
from pipeline.samples import draw
from pipeline.storage import Store, write_atomically
from pipeline.unfinished import sweep_unfinished

FOLDERS = (
    *(layout.OPINIONS, layout.LABEL_TABLE, layout.LABEL_EXAMPLES, layout.REWARD_MODEL_ROWS, layout.SAMPLE_TABLE),
    layout.PREFERENCE_TABLES,
)
OF_TRAINING = (
    *(layout.ROWS_FILE, "data.staged", layout.HELD_OUT_FILE, "held_out.staged", "trl", "staging", "completions"),
    *(f"nemo/*/{name}" for name in ("train.jsonl", "validation.jsonl", "logs", "cache")),
)
"""What holds prompts and completions; the journal, the plan and the result hold numbers alone."""
_PAGES = (".log", ".md", ".html", ".txt")
_ARTIFACTS = (".json", ".csv", ".yaml")


def holding_rows(store: Store, iterations: Collection[str], datasets: Collection[str]) -> list[str]:
    """Names of what these iterations and datasets left of rows; a dataset's own record last: it tells of the rest."""
    paths: list[Path] = []
    for id in iterations:
        folder = store.path(layout.iteration(id))
        paths += [path for name in FOLDERS for path in (folder / name, *folder.glob(f".{name}.*"))]
        paths += [path for name in OF_TRAINING for path in (folder / layout.TRAINING).glob(name)]
    paths += [store.path(layout.window(digest)) for digest in datasets]
    return _there(store, paths)


def sweep(store: Store) -> int:
    """Delete staged rows, scratch folders and half-written files, whoever's they are: killed runs leave them. How many
    went."""
    swept = sweep_unfinished(store.root)
    staged = sorted(store.path(layout.STAGING).glob("*"))
    remove(store, [str(path.relative_to(store.root)) for path in staged])
    return len(swept) + len(staged)


def remove(store: Store, names: Collection[str]) -> None:
    """Delete these files and folders; a run that is still reading one of them fails, and has to be started again."""
    for path in (store.path(name) for name in names):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def clear(store: Store, datasets: Collection[str]) -> list[str]:
    """Delete what was made from these datasets of rows, weights aside; returns the names."""
    built = [each.id for each in iterations(store) if each.dataset.digest in datasets]
    names = holding_rows(store, built, datasets) if datasets else []
    remove(store, names)
    return names


def rewrite_findings(store: Store, user_ids: Collection[str], names: Callable[[bytes], bool]) -> Iterator[str]:
    """Write what judges and reviewers said of the person's completions, and what was drawn for their prompts, anew
    without it, and without what `names` them; yields `name: n lines` of each file before it is written.

    All of it goes, whatever `since` says: what is still allowed is found out again.
    """
    for forget in (findings.forget, reviews.forget, draw.forget):
        yield from forget(store, user_ids, names)


def naming(store: Store, identifiers: Identifiers, but: Collection[str]) -> list[str]:
    """The iterations, `but` these, in whose rows an identifier stands: it was in another user's text."""
    return [
        each.id
        for each in iterations(store)
        if each.id not in but
        and any(_holds(store.path(name), identifiers) for name in holding_rows(store, [each.id], []))
    ]


def redact_logs(store: Store, identifiers: Identifiers) -> Iterator[str]:
    """Take the identifiers out of the loop's own logs, and out of the pages and tables among MLflow's artifacts; yields
    `name: n names` of each file before it is written. No digest names these. A model there stays as it was registered,
    its vocabulary and all."""
    for folder in sorted(layout.OWN):
        for path in sorted(store.path(folder).rglob("*")):
            is_page = path.suffix in _PAGES or (folder == layout.MLFLOW and path.suffix in _ARTIFACTS)
            if is_page and path.is_file() and not _is_of_model(store, path) and _holds(path, identifiers):
                text = path.read_bytes().decode("utf-8", "surrogateescape")
                lines = text.splitlines(keepends=True)
                written = [identifiers.redacted(line) for line in lines]
                changed = sum(one != other for one, other in zip(lines, written, strict=True))
                yield f"{path.relative_to(store.root)}: {changed} names"
                write_atomically(path, "".join(written).encode("utf-8", "surrogateescape"))


def _is_of_model(store: Store, path: Path) -> bool:
    """Whether a file is part of a model or an adapter among the artifacts of a run: experiment, run, artifacts, it."""
    if not path.is_relative_to(store.path(layout.MLFLOW)):
        return False
    return path.relative_to(store.path(layout.MLFLOW)).parts[2:4] in (("artifacts", MODEL), ("artifacts", ADAPTER))


def _holds(path: Path, identifiers: Identifiers) -> bool:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    results = (look_into(each, identifiers) for each in files)
    return any(result is not None and result.holds for result in results)


def _there(store: Store, paths: Collection[Path]) -> list[str]:
    return [str(path.relative_to(store.root)) for path in paths if path.exists()]
