"""From the staged rows of a day to data files of the table: the admitted ones, with their feedback.

Owns which staged rows are written. Refuses to commit: a data file is nothing until the lake names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.traces.lake import LakeConfig
from pipeline.traces.lake.files import write_files
from pipeline.traces.rows import SCHEMA
from pipeline.traces.staging import staged_files


class DayShard(NamedTuple):
    """The rows that one part gives to one day."""

    lake: LakeConfig
    day: str
    name: str
    folder: Path
    place: int
    files: int
    admitted: Path
    feedback: Path | None


def publish_share(share: DayShard) -> list[str]:
    """Write the share's admitted rows; the URIs of the data files. Raises OSError when they cannot be written."""
    return write_files(share.lake, share.day, share.name, _batches(share))


def _batches(share: DayShard) -> Iterator[pa.RecordBatch]:
    own = [("part", "=", share.place)]
    rows = pq.read_table(share.admitted, columns=["row"], filters=own)["row"].to_numpy()
    feedback: dict[int, dict[str, Any]] = {}
    if share.feedback is not None:
        feedback = {line["row"]: line for line in pq.read_table(share.feedback, filters=own).to_pylist()}
    offset = 0
    for path, _ in staged_files(share.folder, share.place, share.day, share.files):
        with pa.OSFile(str(path)) as source:  # mapped pages would count as memory of the process
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                first, last = np.searchsorted(rows, [offset, offset + batch.num_rows])
                wanted = rows[first:last] - offset
                if len(wanted):
                    taken = batch if len(wanted) == batch.num_rows else batch.take(pa.array(wanted))
                    yield _with_feedback(taken, rows[first:last], feedback) if feedback else taken
                offset += batch.num_rows


def _with_feedback(batch: pa.RecordBatch, rows: Any, feedback: Mapping[int, Mapping[str, Any]]) -> pa.RecordBatch:
    for column, key in (("feedback", "feedback"), ("feedback_mean", "mean"), ("feedback_count", "count")):
        values = batch[column].to_pylist()
        for at, row in enumerate(rows):
            if row in feedback:
                values[at] = feedback[row][key]
        field = SCHEMA.field(column)
        batch = batch.set_column(batch.schema.get_field_index(column), field, pa.array(values, field.type))
    return batch
