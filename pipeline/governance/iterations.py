"""Retention of iterations: the weights, checkpoints and answers of those that nothing rests on any more. Their records,
evidence, tables and metrics stay, and the audit log says what went."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pipeline.core import audit, layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.governance.erasure import mirrored, tables
from pipeline.governance.erasure.affected import iterations
from pipeline.registry.runs import MlflowAddresses
from pipeline.registry.versions import drop_weights
from pipeline.rollout.fold import read_log
from pipeline.traces.context import Log

LARGE = (layout.REWARD_MODEL_FOLDER, *(f"{layout.TRAINING}/{n}" for n in ("adapter", "model", "checkpoints", "nemo")))


class Overdue(NamedTuple):
    """What goes of an iteration; None: answers of gates."""

    iteration: Iteration | None
    paths: Sequence[Path]

    @property
    def subject(self) -> str:
        return f"iteration {self.iteration.id}" if self.iteration else "answers of gates"

    @property
    def bytes(self) -> int:
        files = (file for path in self.paths for file in (path, *path.rglob("*")) if file.is_file())
        return sum(file.lstat().st_size for file in files)


def overdue(store: Store, begun: Mapping[str, float], keep: int) -> Iterator[Overdue]:
    """What may go, unless MLflow has an alias of it. `begun`: every iteration and when it was begun, the oldest first.

    Kept are the last `keep`, those whose candidate is in the traffic or was promoted, and, where no rollout ever was,
    those that are registered: people deploy them. Answers are kept since the first of the last began.
    """
    last, every = list(begun)[-keep:], iterations(store)
    kept = set(last)
    for each in every:
        log = read_log(store, each.model_name)
        is_handed_over = log.state.proposal is None and store.path(each.path(layout.MODEL_VERSION)).exists()
        kept |= log.rested_on | ({each.id} if is_handed_over else set())
    for each in every:
        paths = [path for name in LARGE if (path := store.path(each.path(name))).exists()]
        if paths and each.id not in kept:
            yield Overdue(each, paths)
    since = begun[last[0]] if len(begun) > keep else 0.0
    if old := [path for path in store.path(layout.ANSWERS).glob("*/*.json*") if path.stat().st_mtime < since]:
        yield Overdue(None, old)


def sweep(store: Store, due: Sequence[Overdue], addresses: MlflowAddresses, now: datetime, log: Log) -> None:
    """Delete it, inside `exclusive_lock`. What breaks off is found again: the files here go last. Raises what MLflow or
    a mirror does."""
    for each in due:
        if each.iteration is not None:
            if not drop_weights(addresses, each.iteration):
                log(f"retention: {each.subject} is kept: MLflow has an alias of it")
                continue
            for _, folder in mirrored.folders(store, [each.iteration.id]):
                folder.clear()
        names, size = [str(path.relative_to(store.root)) for path in each.paths], each.bytes
        tables.remove(store, names)
        audit.record(store, "retention", each.subject, {"removed": names, "bytes": size}, now)
        log(f"retention: {each.subject}, {size:,} bytes")
