"""Which answers may be read to be graded, as far as people decide: consent, region, confidentiality, erasure.

Whether that is so cannot depend on the arm, which is drawn: where it does, the arms' users differ in more than their
model. Owns the choice of the gates. Refuses to have a rule of its own: they are the traces'.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import pyarrow as pa

from pipeline.traces.arrow import pc
from pipeline.traces.gates import GateRules, confidential, consent, erased, region


def allowed(batch: pa.RecordBatch, rules: GateRules) -> Any:
    """Of each row of a batch of traces, as a column of booleans."""
    objections = reduce(pc.or_, (gate(batch, rules) for gate in (erased, consent, region, confidential)))
    return pc.invert(pc.fill_null(objections, True))
