"""Arrow's compute functions, which are made when pyarrow is imported: no type checker can see them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute


def with_rows(batch: pa.RecordBatch, places: np.ndarray, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """The batch with the values of `rows` at these places, in the columns that they have."""
    if not rows:
        return batch
    at = np.arange(batch.num_rows)
    at[places] = batch.num_rows + np.arange(len(rows))
    for n, field in enumerate(batch.schema):
        if field.name in rows[0]:
            new = pa.array([row[field.name] for row in rows], field.type)
            batch = batch.set_column(n, field, pa.concat_arrays([batch[n], new]).take(pa.array(at)))
    return batch
