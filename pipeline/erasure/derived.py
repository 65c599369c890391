"""Files under the data root, outside the lake, that hold users' rows: what is made from a dataset, and raw exports.

Owns which files of an iteration hold rows (labels, preference data, the trainer's data and what killed attempts left)
and the rewriting of raw Langfuse exports without a user. Refuses to delete weights: models are blocked instead.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.erasure.affected import Person, iterations
from pipeline.rewards import findings, reviews
from pipeline.samples import draw
from pipeline.storage import Store, write_atomically
from pipeline.traces.erased import user_hash

FOLDERS = (
    *(layout.OPINIONS, layout.LABEL_TABLE, layout.LABEL_EXAMPLES, layout.REWARD_MODEL_ROWS, layout.SAMPLE_TABLE),
    layout.PREFERENCE_TABLES,
)
OF_TRAINING = (
    *(layout.ROWS_FILE, "data.staged", layout.HELD_OUT_FILE, "held_out.staged", "trl", "staging", "completions"),
    *(f"nemo/*/{name}" for name in ("train.jsonl", "validation.jsonl", "logs", "cache")),
)
"""What holds prompts and completions; the journal, the plan and the result hold numbers alone."""


def holding_rows(store: Store, iterations: Collection[str], datasets: Collection[str]) -> list[str]:
    """Names of what these iterations and datasets left of rows; a dataset's own record last: it tells of the rest."""
    paths: list[Path] = []
    for id in iterations:
        folder = store.path(layout.iteration(id))
        paths += [path for name in FOLDERS for path in (folder / name, *folder.glob(f".{name}.*"))]
        paths += [path for name in OF_TRAINING for path in (folder / layout.TRAINING).glob(name)]
    paths += [store.path(layout.window(digest)) for digest in datasets]
    return _there(store, paths)


def unfinished(store: Store) -> list[str]:
    """Names of staged rows and half-written files, whoever's they are: killed runs leave them."""
    paths = sorted(store.path(layout.STAGING).glob("*"))
    for folder in (layout.PRODUCTION, layout.REJECTED, layout.REWARDS):
        paths += sorted(store.path(folder).rglob(".*"))
    return _there(store, paths)


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


def rewrite_findings(store: Store, person: Person) -> list[str]:
    """Write what judges and reviewers said of the person's completions, and what was drawn for their prompts, anew
    without it; returns `name: n lines`.

    All of it goes, whatever `since` says: what is still allowed is found out again.
    """
    forgetting = (findings.forget, reviews.forget, draw.forget)
    return sorted(line for forget in forgetting for line in forget(store, person.ids))


def rewrite_raw(store: Store, person: Person) -> list[str]:
    """Write each raw file under the data root anew without the person's lines; returns `name: n lines`.

    Knows JSON lines with `user_id` and `trace_id`, as Langfuse exports them; sources elsewhere are their owner's.

    A line is theirs when it names them, or one of their traces: a score, a broken copy. Files that name traces alone
    come first, so that after a kill the rest still tells which traces those are.
    """
    raw = [folder for folder in sorted(store.root.glob("*")) if folder.is_dir() and folder.name not in layout.OWN]
    files = [p for folder in raw for p in sorted(folder.rglob("*")) if p.name.endswith((".jsonl", ".jsonl.gz"))]
    own = {path: [line for line in _lines(path) if _by(_row(line), person)] for path in files}
    theirs = _PersonLines(person, [line for lines in own.values() for line in lines])
    if not theirs.lines:
        return []
    changes: list[str] = []
    for path in sorted(files, key=lambda path: bool(own[path])):
        lines = list(_lines(path))
        kept = [line for line in lines if not theirs.has(line)]
        if len(kept) < len(lines):
            content = b"".join(kept)
            write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
            changes.append(f"{path.relative_to(store.root)}: {len(lines) - len(kept)} lines")
    return sorted(changes)


class _PersonLines:
    """The lines that name the person, and by them all others that are theirs."""

    def __init__(self, person: Person, lines: Sequence[bytes]) -> None:
        self._person, self.lines = person, lines
        rows = [_row(line) for line in lines]
        self._traces = {str(row.get("trace_id") or row.get("id")) for row in rows}
        self._ids = [str(row[key]).encode() for row in rows for key in ("id", "trace_id") if row.get(key)]

    def has(self, line: bytes) -> bool:
        row = _row(line)
        if isinstance(row.get("user_id"), str):
            return _by(row, self._person)
        if row:
            return str(row.get("trace_id") or row.get("id")) in self._traces
        start = line.rstrip()  # not JSON: perhaps the beginning of one of theirs
        return any(id in line for id in self._ids) or any(whole.startswith(start) for whole in self.lines)


def _by(row: dict[str, Any], person: Person) -> bool:
    user = row.get("user_id")
    if not isinstance(user, str) or _mark(user) != person.user_hash:
        return False
    return person.since is None or _moment(row) >= person.since


def _there(store: Store, paths: Collection[Path]) -> list[str]:
    return [str(path.relative_to(store.root)) for path in paths if path.exists()]


@lru_cache(maxsize=100_000)
def _mark(user: str) -> str:
    return user_hash(user)


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _moment(row: dict[str, Any]) -> datetime:
    """A row without a readable time counts as new: it is then forgotten with the rest."""
    try:
        moment = datetime.fromisoformat(str(row.get("start_time") or row.get("timestamp")))
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        yield from stream
