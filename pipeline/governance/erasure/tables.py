"""Rows that iterations keep: their tables lose the person's rows, by the owner column or else by the traces that they
name; a trainer's scratch files and a dataset's own record name no owner and go whole."""

import shutil
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.removal import Place, Removal, of_files
from pipeline.core.storage import Store, replacing, sweep_unfinished
from pipeline.governance.erasure.affected import iterations

OWNERS = ("user_id", "principal")
TRACES = ("trace_id", "trace_ids", "chosen_trace", "rejected_trace")
NAMED = (layout.SAMPLE_TABLE, layout.LABEL_TABLE)
"""Tables that say which traces are whose: they come last, so that after a kill they still tell."""
TABLES = (layout.OPINIONS, layout.PREFERENCE_TABLES, *NAMED)
OF_TRAINING = (
    *(layout.ROWS_FILE, layout.HELD_OUT_FILE, "trl", "staging", "completions"),
    *(f"nemo/*/{name}" for name in ("train.jsonl", "validation.jsonl", "logs", "cache")),
)
"""What holds prompts and completions; the journal, the plan and the result hold numbers alone."""


def place(store: Store, principals: Collection[str], learned: Collection[str]) -> Place:
    """Rows of the person in the tables of these iterations (ids)."""
    return of_files("tables of iterations", partial(_rows, store, principals, learned))


def scratch(store: Store, learned: Collection[str], datasets: Collection[str]) -> Place:
    """Files of these iterations and datasets without an owner, each counted as one."""

    def removals() -> Iterator[Removal]:
        for name in holding_rows(store, learned, datasets, without_owner=True):
            yield Removal(name, 1, partial(remove, store, [name]))

    return of_files("files of trainings and datasets", removals)


def holding_rows(
    store: Store, learned: Collection[str], datasets: Collection[str], *, without_owner: bool = False
) -> list[str]:
    """Names of what these iterations and datasets left of rows; a dataset's own record last: it tells of the rest."""
    paths: list[Path] = []
    for id in learned:
        folder = store.path(layout.iteration(id))
        paths += [
            path for name in (*TABLES, layout.REWARD_MODEL_FOLDER) for path in folder.glob(f".{name}.*")
        ]  # of killed attempts
        paths += [] if without_owner else [folder / name for name in TABLES]
        paths += [path for name in OF_TRAINING for path in sorted((folder / layout.TRAINING).glob(name))]
    paths += [store.path(layout.window(digest)) for digest in datasets]
    return [str(path.relative_to(store.root)) for path in paths if path.exists()]


def sweep(store: Store) -> int:
    """Delete what killed runs left in our folders: staged rows and half-written files. How many went."""
    ours = sorted((*layout.OWN, f"{layout.PRODUCTION}/served"))
    swept = [path for name in ours for path in sweep_unfinished(store.path(name))]
    staged = [*store.path(layout.STAGING).glob("*"), *store.path(layout.REVIEWS).glob(".*")]
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


def _rows(store: Store, principals: Collection[str], learned: Collection[str]) -> Iterator[Removal]:
    for id in sorted(learned):
        folder = store.path(layout.iteration(id))
        traces: set[str] = set()
        for path in (path for name in NAMED for path in (folder / name).rglob("*.parquet")):
            theirs = [("user_id", "in", sorted(principals))]
            traces |= set(pq.read_table(path, columns=["user_id", "trace_id"], filters=theirs)["trace_id"].to_pylist())
        for path in (path for name in TABLES for path in sorted((folder / name).rglob("*.parquet"))):
            gone = sum(sum(_gone(batch, principals, traces)) for batch in _batches(path))
            if gone:
                name = str(path.relative_to(store.root))
                yield Removal(name, gone, partial(_write_without, path, principals, traces))


def _batches(path: Path) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        names = [name for name in (*OWNERS, *TRACES) if name in file.schema_arrow.names]
        yield from file.iter_batches(columns=names) if names else ()


def _gone(batch: Any, principals: Collection[str], traces: Collection[str]) -> list[bool]:
    """Of each row, whether it goes: by its owner where a column names one, else by its traces."""
    owners = [name for name in OWNERS if name in batch.schema.names]
    named = owners or [name for name in TRACES if name in batch.schema.names]
    wanted = set(principals if owners else traces)
    columns = [batch[name].to_pylist() for name in named]
    rows = zip(*columns, strict=True)
    return [any(not wanted.isdisjoint(v if isinstance(v, list) else [v]) for v in row) for row in rows]


def _write_without(path: Path, principals: Collection[str], traces: Collection[str]) -> None:
    with (
        pq.ParquetFile(path) as file,
        replacing(path) as stream,
        pq.ParquetWriter(stream, file.schema_arrow) as writer,
    ):
        for batch in file.iter_batches():
            kept = batch.filter(pa.array([not gone for gone in _gone(batch, principals, traces)], pa.bool_()))
            writer.write_table(pa.Table.from_batches([kept], file.schema_arrow))
