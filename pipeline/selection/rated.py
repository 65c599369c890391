"""Rated rows that a reward model may learn from: the same consent and decontamination as for preference data.

Owns the order: rows with a call that no model can be shown, rows without consent of now, answers with a placeholder
for personal data, rows that a frozen suite asks, rows that hold an item of an evaluation; each is counted. Refuses to
read a thumb: pipeline/rewards/reward_model does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow.parquet as pq

from pipeline.core.storage import DatasetRef
from pipeline.rewards.reward_model.thumbs import Thumb
from pipeline.selection.contamination import Index
from pipeline.selection.pairing import read_labels
from pipeline.selection.trainable import HeldApart, without_frozen
from pipeline.traces.arrow import pc
from pipeline.traces.pii import is_masked


def rated_rows(
    labels: DatasetRef,
    apart: HeldApart,
    governed: Callable[[], Collection[tuple[str, str]]],
) -> tuple[list[Thumb], dict[str, int]]:
    """The rows with feedback that may be trained on, and how many others have some, by reason.

    `governed`: (trace_id, observation_id) of the rows that may be trained on now. Call it inside `shared_lock`.
    """
    column = pq.read_table(labels.uri, columns=["feedback"])["feedback"]
    all_rated = int(pc.sum(pc.is_valid(column)).as_py() or 0)
    rated = [row for row in read_labels(labels) if row.feedback is not None]
    allowed = governed()
    agreed = [row for row in rated if row.consent is True and row[:2] in allowed]
    plain = [row for row in agreed if not is_masked(row.completion)]
    unfrozen = without_frozen(plain, apart.frozen)
    clean = Index(apart.texts).check(unfrozen)[0]
    thumbs = [Thumb(*r[:2], r.user_id, r.prompt, r.completion, r.feedback) for r in clean if r.feedback is not None]
    return thumbs, {
        "unshowable call": all_rated - len(rated),
        "without consent": len(rated) - len(agreed),
        "masked answer": len(agreed) - len(plain),
        "kept for suites": len(plain) - len(unfrozen),
        "holds an evaluation's item": len(unfrozen) - len(clean),
    }
