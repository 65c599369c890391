"""Scores and attributes of whole traces: masked, staged in a file for each part and joined to the calls of a day. The
newest export of each counts; a call's own attributes win over its trace's."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.traces.database import connect, quoted
from pipeline.traces.pii.columns import mask_column, mask_json_column, pseudonym_column
from pipeline.traces.rows import Rows, Trace
from pipeline.traces.scores import Meanings, ScoreCounts

SCORES = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "trace_id", "observation_id", "name")),
        ("value", pa.float64()),
        ("source", pa.string()),
        ("updated_at", pa.timestamp("us", tz="UTC")),
        ("part", pa.int32()),
    ]
)
ATTRIBUTES = pa.schema(
    [
        *((name, pa.string()) for name in ("trace_id", "user_id", "session_id", "metadata")),
        ("updated_at", pa.timestamp("us", tz="UTC")),
        ("part", pa.int32()),
    ]
)
MASKS: dict[str, Callable[[pa.Array], pa.Array]] = {
    **dict.fromkeys(("name", "source"), lambda values: mask_column(values)[0]),
    **dict.fromkeys(("user_id", "session_id"), pseudonym_column),
    "metadata": mask_json_column,
}


def annotations_file(folder: Path, index: int) -> Path:
    return folder / f"{index}.said.parquet"


class StagedAnnotations:
    """Writes the file of a part that has scores or attributes; `counts` are of its scores."""

    def __init__(self, path: Path, part: int, meanings: Meanings) -> None:
        self._path, self._part, self._meanings = path, part, meanings
        self._writer: pq.ParquetWriter | None = None
        self.counts = ScoreCounts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, block: Rows) -> None:
        if block.scores:
            meant = [self._meanings.of(score) for score in block.scores]
            for score, each in zip(block.scores, meant, strict=True):
                self.counts.add(score, each)
            self._append(SCORES, block.scores, value=[each.value for each in meant])
        elif block.attributes:
            self._append(ATTRIBUTES, block.attributes)

    def _append(self, schema: pa.Schema, rows: Sequence[Any], **values: list[Any]) -> None:
        values["part"] = [self._part] * len(rows)
        columns: list[pa.Array] = []
        for field in schema:
            column = pa.array(values.get(field.name) or [getattr(row, field.name) for row in rows], field.type)
            columns.append(MASKS[field.name](column) if field.name in MASKS else column)
        self._writer = self._writer or pq.ParquetWriter(self._path, schema)
        self._writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def index_attributes(files: Sequence[Path], database: Path) -> Path:
    """One database of the newest attributes of each trace, for the workers to read; its path."""
    with connect(database.parent, database) as connection:
        connection.execute(
            f"create table attributes as select * from read_parquet({quoted(files)}) qualify row_number() "
            "over (partition by trace_id order by updated_at desc nulls last, part desc) = 1 order by trace_id"
        )
    return database


def join_attributes(database: Path, traces: Sequence[Trace]) -> None:
    """Complete the traces by what is said of each as a whole. `database`: from `index_attributes`."""
    wanted = pa.table({"trace_id": pa.array(sorted({trace.trace_id for trace in traces}), pa.string())})
    with connect(database.parent, database, read_only=True) as connection:
        connection.register("wanted", wanted)
        rows = connection.sql("select a.* from attributes a semi join wanted using (trace_id)").fetchall()
    known = {row[0]: dict(zip(ATTRIBUTES.names, row, strict=True)) for row in rows}
    for trace in traces:
        if (row := known.get(trace.trace_id)) is not None:
            trace.user_id = trace.user_id or row["user_id"]
            trace.session_id = trace.session_id or row["session_id"]
            trace.metadata = merged(trace.metadata, row["metadata"])


def merged(own: str, whole: str) -> str:
    """The metadata of a trace with that of one of its calls laid over it."""
    if own == "{}":
        return whole
    both = [cast(dict[str, Any], msgspec.json.decode(text)) for text in (whole, own)]
    return msgspec.json.encode(both[0] | both[1]).decode()


# The newest export of each score on the calls that were admitted.
FEEDBACK = """
create table feedback as
with newest as (
    select s.* from read_parquet({scores}) s semi join admitted a on s.trace_id = a.trace_id
    qualify row_number() over (partition by s.id order by s.updated_at desc nulls last, s.part desc) = 1
),
answers as (
    select trace_id, observation_id, timestamp from judged where observation_id is not null
    and (outcome is null or outcome not in ('superseded', 'intermediate', 'helper'))
),
about as (
    select id, observation_id from newest where observation_id is not null
    union all (
        select n.id, a.observation_id from newest n join answers a using (trace_id) where n.observation_id is null
        qualify row_number() over (
            partition by n.id
            order by coalesce(a.timestamp <= n.updated_at, true) desc, a.timestamp desc, a.observation_id
        ) = 1
    )
)
select a.part, a.row,
       list(struct_pack(name := n.name, value := n.value, source := n.source) order by n.id) as feedback,
       avg(n.value) as mean, count(n.value) as count
from newest n join about using (id)
join admitted a on n.trace_id = a.trace_id and about.observation_id = a.observation_id
group by all
"""
