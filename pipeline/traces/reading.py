"""Reads the parts of a source in two rounds: first those that changed, which tell the affected days, then the unchanged
parts of those days."""

import json
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline.core import layout
from pipeline.core.storage import Store, claimed_folder, digest_json, replacing, sweep_unfinished
from pipeline.traces.arrow import pc
from pipeline.traces.context import StageContext
from pipeline.traces.engine import Engine
from pipeline.traces.erased import Forgotten
from pipeline.traces.govern import GovernedPart, GovernTask, govern_part, keys_file
from pipeline.traces.lake import Lake
from pipeline.traces.records import UNKNOWN_DAY
from pipeline.traces.scores import ScoreCounts, scores_file
from pipeline.traces.sources.protocol import Address, SourcePart
from pipeline.traces.watermark import Changes, ReadPart, Watermark, touched_by


@contextmanager
def staging(store: Store) -> Generator[Path]:
    """A private folder for staged rows, removed at the end, as are those of killed runs at the start."""
    root = store.path(layout.STAGING)
    sweep_unfinished(root)  # by their locks: no clock tells a living run's folder from a dead one's
    with claimed_folder(root / "rows") as folder:
        folder.chmod(0o700)
        yield folder


@dataclass
class Reading:
    """A run of the stage over a source; `governed` is what it read so far. Both it and `parts` are by the part's place
    in name order."""

    context: StageContext
    address: Address
    now: datetime
    lake: Lake
    forgotten: Forgotten
    known: Watermark
    parts: Mapping[int, SourcePart]
    engine: Engine
    folder: Path
    governed: dict[int, GovernedPart] = field(default_factory=dict)

    @property
    def scores(self) -> tuple[Path, ...]:
        return tuple(scores_file(self.folder, n) for n, done in sorted(self.governed.items()) if done.scores)

    def read(self, changes: Changes, stale: Collection[str]) -> set[str]:
        """Read what is needed; returns the days to make. Raises ValueError for scores that are outside their scale."""
        known, changed = self.known.parts, {part.name for part in changes.changed}
        new = [n for n, part in self.parts.items() if part.name in changed]
        self._govern(new)
        touched = {*stale, *touched_by(known[name] for name in (*changes.gone, *changed) if name in known)}
        touched |= {day for n in new for day in self.governed[n].days} | self._days_said_about(new)
        unread = [n for n in self.parts if n not in self.governed]
        self._govern([n for n in unread if touched & touched_by([known[self.parts[n].name]])])
        self._govern_scores()
        self._check_scores()
        return touched

    def watermark(self, label: str, annotates: Mapping[int, Collection[str]]) -> Watermark:
        """The watermark after every day is made. `annotates`: part to the days of the traces that it is about."""
        read_parts: dict[str, ReadPart] = {}
        for place, part in self.parts.items():
            read, before = self.governed.get(place), self.known.parts.get(part.name)
            if before is None or before.version != part.version:
                assert read is not None, f"{part.name} is new and was not read"
                before = ReadPart(
                    version=part.version if read.whole else "",
                    sha256=read.sha256,
                    bytes=part.size,
                    holds=part.holds,
                    days=tuple(sorted(read.days)),
                )
            about = {*before.annotates, *annotates.get(place, ())}
            read_parts[part.name] = before.model_copy(update={"annotates": tuple(sorted(about))})
        return Watermark(source=label, reader=self.known.reader, parts=read_parts)

    def _govern(self, places: Sequence[int]) -> None:
        tasks = [
            GovernTask(
                address=self.address,
                part=self.parts[place],
                place=place,
                folder=self.folder,
                settings=self.context.recipe.traces,
                now=self.now,
                erased=self.forgotten,
            )
            for place in places
            if place not in self.governed
        ]
        for task, done in zip(tasks, self.engine.map(govern_part, tasks, self.context.log), strict=True):
            self.governed[task.place] = done
            cut = "" if done.whole else ", and it broke off"
            self.context.log(f"traces: read {task.part.name}: {done.rows:,} rows{cut}")

    def _govern_scores(self) -> None:
        """Read the unread parts of scores that are about calls of this run: any may be, for a score may be exported
        before its call. Hashes of their traces are kept for the next run."""
        kept = {
            n: self.context.store.path(layout.SCORED_TRACES, f"{digest_json([part.name, part.version])[:32]}.npy")
            for n, part in self.parts.items()
            if part.holds == "scores"
        }
        unread = {n: np.load(path) if path.exists() else None for n, path in kept.items() if n not in self.governed}
        calls = _traces(keys_file(self.folder, n) for n in (self.governed if unread else ()))
        self._govern([n for n, traces in unread.items() if traces is None or np.isin(traces, calls).any()])
        for n, path in kept.items():
            if n in self.governed and self.governed[n].whole and not path.exists():
                with replacing(path) as stream:
                    np.save(stream, _traces([scores_file(self.folder, n)]))
        for path in {*self.context.store.path(layout.SCORED_TRACES).glob("*.npy")} - {*kept.values()}:
            path.unlink()

    def _check_scores(self) -> None:
        """Log undeclared scores. Raises ValueError for scores that are outside their scale."""
        counts = ScoreCounts(each for done in self.governed.values() for each in done.scores)
        if wrong := counts.outside():
            raise ValueError(f"scores: {wrong}")
        for each in counts.undeclared():
            self.context.log(
                f"traces: WARNING: {each.line()}: traces.scores does not declare them. Name them there with their "
                "scale, and with use: ignore where they are no feedback of people."
            )

    def _days_said_about(self, places: Collection[int]) -> set[str]:
        """Days of the traces in scores of these parts, as the table and the ledgers know them."""
        files = [file for place in places if (file := scores_file(self.folder, place)).exists()]
        if not files or not self.known.parts:
            return set()
        said = pc.unique(pa.concat_tables(pq.read_table(file, columns=["trace_id"]) for file in files)["trace_id"])
        known = self.known.days - {UNKNOWN_DAY}
        batches = self.lake.batches(known, self.lake.snapshot, ["day"], pc.field("trace_id").isin(said))
        days = {day.isoformat() for batch in batches for day in batch["day"].unique().to_pylist()}
        traces = set(said.to_pylist())
        for ledger in self.context.store.path(layout.REJECTED).glob("*.jsonl"):
            with ledger.open(encoding="utf-8") as lines:
                if any(json.loads(line)["trace_id"] in traces for line in lines):
                    days.add(ledger.stem)
        return days


def _traces(files: Iterable[Path]) -> Any:
    """Hashes of the traces in staged files: no row and no id is kept longer than a run."""
    columns = (pq.read_table(file, columns=["trace_id"])["trace_id"] for file in files if file.exists())
    ids = (id for column in columns for id in pc.unique(column.cast(pa.binary())).to_pylist() if id is not None)
    return np.unique(np.fromiter(map(xxhash.xxh3_64_intdigest, ids), np.uint64))
