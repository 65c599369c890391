"""Attributes of whole traces that a source keeps in rows of their own: staged once, joined to the calls in each worker.

What a call says of itself wins over what its trace says, and the newest export over older ones. Metadata and identities
are masked before they are staged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.traces.database import connect, quoted
from pipeline.traces.pii.columns import mask_json_column, pseudonym_column
from pipeline.traces.rows import Rows, Trace

STAGED = pa.schema(
    [
        ("part", pa.int32()),
        ("trace_id", pa.string()),
        ("user_id", pa.string()),
        ("session_id", pa.string()),
        ("metadata", pa.string()),
        ("updated_at", pa.timestamp("us", tz="UTC")),
    ]
)


def write_attributes(writer: pq.ParquetWriter, part: int, block: Rows) -> None:
    """Append the attributes of a part to a staged file."""
    columns: dict[str, Any] = {
        field.name: pa.array([getattr(row, field.name) for row in block.attributes], field.type)
        for field in STAGED
        if field.name != "part"
    }
    columns["part"] = pa.array([part] * len(block.attributes), pa.int32())
    columns["metadata"] = mask_json_column(columns["metadata"])
    for name in ("user_id", "session_id"):
        columns[name] = pseudonym_column(columns[name])
    writer.write_table(pa.table(columns, schema=STAGED))


def index_attributes(files: Sequence[Path], database: Path) -> str:
    """One database of the newest attributes of each trace, for the workers to read; its path."""
    with connect(database.parent, database) as connection:
        connection.execute(
            f"create table attributes as select * from read_parquet({quoted(files)}) qualify row_number() "
            "over (partition by trace_id order by updated_at desc nulls last, part desc) = 1 order by trace_id"
        )
    return str(database)


class AttributeTable:
    """The attributes, opened by a worker."""

    def __init__(self, database: str) -> None:
        self._database = Path(database)

    def join(self, traces: Sequence[Trace]) -> None:
        """Give each call what its trace says."""
        wanted = pa.table({"trace_id": pa.array(sorted({trace.trace_id for trace in traces}), pa.string())})
        with connect(self._database.parent, self._database, read_only=True) as connection:
            connection.register("wanted", wanted)
            rows = connection.sql("select a.* from attributes a semi join wanted using (trace_id)").fetchall()
        known = {row[1]: dict(zip(STAGED.names, row, strict=True)) for row in rows}
        for trace in traces:
            row = known.get(trace.trace_id)
            if row is not None:
                trace.user_id = trace.user_id or row["user_id"]
                trace.session_id = trace.session_id or row["session_id"]
                trace.metadata = merged(trace.metadata, row["metadata"])


def merged(own: str, whole: str) -> str:
    """The metadata of a trace with that of one of its calls laid over it."""
    if own == "{}":
        return whole
    both = [cast(dict[str, Any], msgspec.json.decode(text)) for text in (whole, own)]
    return msgspec.json.encode(both[0] | both[1]).decode()
