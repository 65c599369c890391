"""Which labelled rows may be trained on now: consent is asked again, and what an evaluation asks is left out.

One rule for what is logged and for what is drawn from it. Refuses to pair, to split and to score.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from pipeline.selection.clusters import cluster
from pipeline.selection.contamination import ContaminationReport, Hit, Index, contents
from pipeline.selection.pairing import LabelledRow


class HeldApart(NamedTuple):
    """What training never sees."""

    texts: Mapping[str, Sequence[str]]
    """Every evaluation suite's items, but for those that were drawn from traces."""
    frozen: Sequence[str] = ()
    """The prompts of those, as labels have them: rows that ask them are expected, and no sign of a broken split."""


class TrainableRows(NamedTuple):
    """The rows that are left, and what was left out."""

    rows: list[LabelledRow]
    contamination: ContaminationReport
    hits: list[Hit]
    frozen: int
    """Labelled rows that ask what a suite from traces asks, or nearly so."""
    without_consent: int


def trainable(
    labelled: Sequence[LabelledRow],
    apart: HeldApart,
    governed: Callable[[], Collection[tuple[str, str]]],
    max_contamination: float,
) -> TrainableRows:
    """`governed`: (trace_id, observation_id) of the rows that may be trained on now.

    Raises ValueError when more than `max_contamination` of the rows hold evaluation items.
    """
    allowed = governed()
    agreed = [row for row in labelled if row.consent is True and row[:2] in allowed]
    unfrozen = without_frozen(agreed, apart.frozen)
    clean, contamination, hits = Index(apart.texts).check(unfrozen)
    _refuse_contaminated(contamination, hits, max_contamination)
    return TrainableRows(
        rows=clean,
        contamination=contamination,
        hits=hits,
        frozen=len(agreed) - len(unfrozen),
        without_consent=len(labelled) - len(agreed),
    )


def trainable_samples(
    fresh: Sequence[LabelledRow], logged: Sequence[LabelledRow], apart: HeldApart
) -> list[LabelledRow]:
    """Of completions drawn for logged rows, those whose row is among the trainable ones and that hold no item."""
    rows = {row[:2] for row in logged}
    clean, _, _ = Index(apart.texts).check([row for row in fresh if row[:2] in rows])
    return clean


def without_frozen(rows: Sequence[LabelledRow], frozen: Sequence[str]) -> list[LabelledRow]:
    """The rows whose prompt is in no cluster with a frozen one, and that hold the text of none."""
    if not frozen:
        return list(rows)
    clusters = cluster([*(row.prompt for row in rows), *frozen])
    asked = {clusters[prompt] for prompt in frozen}
    apart = [row for row in rows if clusters[row.prompt] not in asked]
    return Index({"frozen": ["\n".join(contents(prompt)) for prompt in frozen]}).check(apart)[0]


def _refuse_contaminated(report: ContaminationReport, hits: Sequence[Hit], limit: float) -> None:
    if report.share > limit:
        first = hits[0]
        raise ValueError(
            f"{report.hits} of {report.rows} traces hold items of an evaluation (limit {limit:.0%}): "
            f"{report.by_suite}. Trace {first.trace_id} has item {first.item} of {first.suite} ({first.rule}), "
            f"{first.text!r}. Change the suite or its seed: it is no longer unseen."
        )
