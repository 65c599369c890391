"""Feedback: scores staged once, and joined to the calls of a day by the judge.

Owns which scores are about a call: those on its trace as a whole and those on the call itself, the newest export of
each. Names and sources are masked before they are staged. Refuses to weigh scores.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.traces.arrow import pc
from pipeline.traces.pii.columns import mask_column
from pipeline.traces.rows import Rows

STAGED = pa.schema(
    [
        ("part", pa.int32()),
        ("id", pa.string()),
        ("trace_id", pa.string()),
        ("observation_id", pa.string()),
        ("name", pa.string()),
        ("value", pa.float64()),
        ("source", pa.string()),
        ("updated_at", pa.timestamp("us", tz="UTC")),
    ]
)


def write_scores(writer: pq.ParquetWriter, part: int, block: Rows) -> None:
    """Append the scores of a part to a staged file. A name that cannot be masked becomes `[BINARY]`."""
    columns: dict[str, Any] = {
        field.name: pa.array([getattr(row, field.name) for row in block.scores], field.type)
        for field in STAGED
        if field.name != "part"
    }
    for name in ("name", "source"):
        masked, unmaskable = mask_column(columns[name])
        columns[name] = pc.if_else(unmaskable, "[BINARY]", masked)
    columns["part"] = pa.array([part] * len(block.scores), pa.int32())
    writer.write_table(pa.table(columns, schema=STAGED))


# The newest export of each score on the calls that were admitted.
FEEDBACK = """
create temp table feedback as
with newest as (
    select s.* from scores s semi join admitted a on s.trace_id = a.trace_id
    qualify row_number() over (partition by s.id order by s.updated_at desc nulls last, s.part desc) = 1
)
select a.part, a.row,
       list(struct_pack(name := n.name, value := n.value, source := n.source) order by n.id) as feedback,
       avg(n.value) filter (n.source <> 'EVAL') as mean,
       count(n.value) filter (n.source <> 'EVAL') as count
from newest n join admitted a on n.trace_id = a.trace_id
where n.observation_id is null or n.observation_id = a.observation_id
group by all
"""
