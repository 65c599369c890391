"""Feedback: scores staged once, and joined to the calls of a day by the judge.

A score is about its call, or about the last answer that its trace had when it was given; the newest export of each
counts. Names and sources are masked before they are staged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.traces.arrow import pc
from pipeline.traces.pii.columns import mask_column
from pipeline.traces.rows import Score
from pipeline.traces.scores import Meanings, ScoreCounts

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


def write_scores(writer: pq.ParquetWriter, part: int, scores: Sequence[Score], meanings: Meanings) -> ScoreCounts:
    """Append the scores of a part to a staged file, with their values by the recipe; their counts. A name that cannot
    be masked becomes `[BINARY]`."""
    meant = [meanings.of(score) for score in scores]
    counts = ScoreCounts()
    for score, each in zip(scores, meant, strict=True):
        counts.add(score, each)
    columns: dict[str, Any] = {
        field.name: pa.array([getattr(row, field.name) for row in scores], field.type)
        for field in STAGED
        if field.name not in ("part", "value")
    }
    columns["value"] = pa.array([each.value for each in meant], pa.float64())
    for name in ("name", "source"):
        masked, unmaskable = mask_column(columns[name])
        columns[name] = pc.if_else(unmaskable, "[BINARY]", masked)
    columns["part"] = pa.array([part] * len(scores), pa.int32())
    writer.write_table(pa.table(columns, schema=STAGED))
    return counts


# The newest export of each score on the calls that were admitted.
FEEDBACK = """
create temp table feedback as
with newest as (
    select s.* from scores s semi join admitted a on s.trace_id = a.trace_id
    qualify row_number() over (partition by s.id order by s.updated_at desc nulls last, s.part desc) = 1
),
answers as (
    select trace_id, observation_id, timestamp from keys anti join (
        select part, line from rejected where reason in ('superseded', 'intermediate', 'helper')
    ) using (part, line)
    where observation_id is not null
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
