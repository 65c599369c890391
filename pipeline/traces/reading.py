"""Reads the parts of a source in two rounds: first those that changed, which tell the affected days, then the unchanged
parts of those days."""

import shutil
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.core.unfinished import claimed_folder, sweep_unfinished, unfinished_name
from pipeline.recipe.traces import Traces
from pipeline.traces.annotations import annotations_file, index_attributes
from pipeline.traces.database import connect, quoted
from pipeline.traces.engine import Engine
from pipeline.traces.erased import Forgotten
from pipeline.traces.govern import GovernedPart, GovernTask, govern_part
from pipeline.traces.lake import Lake
from pipeline.traces.scores import ScoreCounts
from pipeline.traces.sources.protocol import Address, SourcePart
from pipeline.traces.watermark import Changes, ReadPart, Watermark, sealed, touched_by


class Session(NamedTuple):
    store: Store
    lake: Lake
    address: Address
    settings: Traces
    now: datetime
    erased: Forgotten
    log: Callable[[str], None]

    @contextmanager
    def staging(self) -> Generator[Path]:
        """A private folder for staged rows, removed at the end, as are those of killed runs at the start."""
        root = self.store.path(layout.STAGING)
        sweep_unfinished(root)  # by their locks: no clock tells a living run's folder from a dead one's
        folder = unfinished_name(root / "rows")
        try:
            with claimed_folder(folder):
                folder.chmod(0o700)
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Reading:
    """The parts that this run reads. `governed` and `parts` are by index: the part's place in name order."""

    def __init__(
        self, session: Session, engine: Engine, folder: Path, known: Watermark, parts: Sequence[SourcePart]
    ) -> None:
        self._session, self._engine, self._known = session, engine, known
        self.folder = folder
        self.parts = dict(enumerate(sorted(parts, key=lambda part: part.name)))
        self.governed: dict[int, GovernedPart] = {}
        self.attributes: tuple[Path, ...] = ()
        self._index = ""

    @property
    def sealed(self) -> set[str]:
        """Days that cannot be made again, as their raw data is past retention."""
        return sealed(self._known.parts)

    @property
    def scores(self) -> tuple[Path, ...]:
        return tuple(annotations_file(self.folder, n) for n, done in sorted(self.governed.items()) if done.scores)

    def read(self, changes: Changes, stale: Collection[str]) -> set[str]:
        """Read what is needed; returns the days to make."""
        changed = {part.name for part in changes.changed}
        self._read_said()
        touched = set(stale) | touched_by(self._known.parts[name] for name in changes.gone)
        touched |= touched_by(self._known.parts[name] for name in changed & self._known.parts.keys())
        self._map([n for n, part in self.parts.items() if part.holds == "calls" and part.name in changed], None)
        touched |= self._days_said_about(changed)
        touched |= {day for n, done in self.governed.items() if self.parts[n].name in changed for day in done.days}
        again = touched - self.sealed
        unread = [n for n, part in self.parts.items() if part.holds == "calls" and n not in self.governed]
        affected = [n for n in unread if again & touched_by([self._known.parts[self.parts[n].name]])]
        self._map(affected, frozenset(again))
        self._check_scores()
        return touched

    def _check_scores(self) -> None:
        """Log undeclared scores. Raises ValueError for scores that are outside their scale."""
        counts = ScoreCounts(each for done in self.governed.values() for each in done.scores)
        if wrong := counts.outside():
            raise ValueError(f"scores: {wrong}")
        for each in counts.undeclared():
            self._session.log(
                f"traces: WARNING: {each.line()}: traces.scores does not declare them. If they are people's word, "
                f"write there {each.section()} with use: feedback, else as it stands."
            )

    def watermark(self, changes: Changes, label: str, annotates: Mapping[int, Collection[str]]) -> Watermark:
        """The watermark after every day is made. `annotates`: part to the days of the traces that it is about."""
        read_parts = {name: part for name, part in self._known.parts.items() if part.retired}
        read_parts |= {name: self._known.parts[name].model_copy(update={"retired": True}) for name in changes.retired}
        for index, part in self.parts.items():
            read, before = self.governed.get(index), self._known.parts.get(part.name)
            if before is None or before.version != part.version or before.retired:
                assert read is not None, f"{part.name} is new and was not read"
                before = ReadPart(
                    version=part.version if read.whole else "",
                    sha256=read.sha256,
                    bytes=part.size,
                    holds=part.holds,
                    days=tuple(sorted(read.days)),
                )
            about = {*before.annotates, *annotates.get(index, ())}
            read_parts[part.name] = before.model_copy(update={"annotates": tuple(sorted(about))})
        return Watermark(source=label, reader=self._known.reader, parts=read_parts)

    def _read_said(self) -> None:
        indices = [n for n, part in self.parts.items() if part.holds != "calls"]
        self._map(indices, None)
        attributes = [n for n in indices if self.parts[n].holds == "attributes"]
        files = [annotations_file(self.folder, n) for n in attributes]
        self.attributes = tuple(file for file in files if file.exists())
        if self.attributes:
            self._index = index_attributes(self.attributes, self.folder / "attributes.duckdb")

    def _days_said_about(self, changed: Collection[str]) -> set[str]:
        """Days of the traces in changed scores or attributes, as the table and the ledgers know them."""
        files = {annotations_file(self.folder, n) for n, part in self.parts.items() if part.name in changed}
        files &= {*self.scores, *self.attributes}
        if not files or not self._known.parts:
            return set()
        lake = self._session.lake
        with connect(self.folder) as db:
            db.execute(f"create temp table said as select distinct trace_id from read_parquet({quoted(sorted(files))})")
            columns = pa.schema([("trace_id", pa.string()), ("day", pa.date32())])
            batches = lake.batches(self._known.days - {"unknown"}, lake.snapshot, columns.names)
            db.register("admitted", pa.RecordBatchReader.from_batches(columns, batches))
            rows = db.execute("select distinct day from admitted semi join said using (trace_id)").fetchall()
            days = {day.isoformat() for (day,) in rows}
            for ledger in sorted(
                self._session.store.path(layout.REJECTED).glob("*.jsonl")
            ):  # one at a time: DuckDB takes 32 MB for each JSON file of a query
                lines = f"read_json({quoted([ledger])}, columns = {{trace_id: 'VARCHAR'}})"
                if db.execute(f"select 1 from {lines} semi join said using (trace_id) limit 1").fetchone():
                    days.add(ledger.stem)
        return days

    def _map(self, indices: Sequence[int], only: frozenset[str] | None) -> None:
        tasks = [self._task(n, only) for n in indices]
        for _, done in zip(tasks, self._engine.map(govern_part, tasks, self._session.log), strict=True):
            self.governed[done.place] = done
            name = self.parts[done.place].name
            cut = "" if done.whole else ", and it broke off"
            self._session.log(f"traces: read {name}: {done.rows:,} rows{cut}")

    def _task(self, index: int, only: frozenset[str] | None) -> GovernTask:
        part = self.parts[index]
        return GovernTask(
            address=self._session.address,
            part=part,
            place=index,
            folder=str(self.folder),
            settings=self._session.settings,
            now=self._session.now,
            erased=self._session.erased,
            attributes=self._index if part.holds == "calls" else "",
            only=only,
        )
