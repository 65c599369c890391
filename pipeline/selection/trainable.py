"""Which labelled rows may be trained on now: those whose consent holds, asked again of the governed table, without what
an evaluation asks, and without what the model's context has no room for."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from pipeline.core.model_files import context_of
from pipeline.core.storage import DatasetRef
from pipeline.recipe import Training
from pipeline.rewards.reward_model.records import Thumb
from pipeline.selection.clusters import cluster
from pipeline.selection.contamination import ContaminationReport, Index, contents
from pipeline.selection.pairing import LabelledRow, read_labels
from pipeline.traces.arrow import pc
from pipeline.traces.pii import is_masked

TEMPLATE_TOKENS = 256
"""Most that a chat template is taken to add by itself."""


class HeldApart(NamedTuple):
    texts: Mapping[str, Sequence[str]]
    """Every evaluation suite's items, but for those that were drawn from traces."""
    frozen: Sequence[str] = ()
    """The prompts of those, as labels have them: rows that ask them are expected, and no sign of a broken split."""


class TrainableRows(NamedTuple):
    rows: list[LabelledRow]
    contamination: ContaminationReport
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
    if contamination.share > max_contamination:
        first = hits[0]
        raise ValueError(
            f"{contamination.hits} of {contamination.rows} traces hold items of an evaluation (limit "
            f"{max_contamination:.0%}): {contamination.by_suite}. Trace {first.trace_id} has item {first.item} of "
            f"{first.suite} ({first.rule}), {first.text!r}. Change the suite or its seed: it is no longer unseen."
        )
    return TrainableRows(
        rows=clean,
        contamination=contamination,
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


def rated_rows(
    labels: DatasetRef,
    apart: HeldApart,
    governed: Callable[[], Collection[tuple[str, str]]],
) -> tuple[list[Thumb], dict[str, int]]:
    """Rows with feedback that a reward model may learn from, and how many others have some, by reason. Call it inside
    `shared_lock`."""
    column = pq.read_table(labels.uri, columns=["feedback"])["feedback"]
    all_rated = int(pc.sum(pc.is_valid(column)).as_py() or 0)
    rated = [row for row in read_labels(labels) if row.feedback is not None]
    plain = [row for row in rated if not is_masked(row.completion)]
    usable = trainable(plain, apart, governed, max_contamination=1.0)
    thumbs = [
        Thumb(*r[:2], r.user_id, r.prompt, r.completion, r.feedback) for r in usable.rows if r.feedback is not None
    ]
    return thumbs, {
        "unshowable call": all_rated - len(rated),
        "masked answer": len(rated) - len(plain),
        "without consent": usable.without_consent,
        "kept for suites": usable.frozen,
        "holds an evaluation's item": usable.contamination.hits,
    }


def within_context(rows: Sequence[LabelledRow], folder: Path, training: Training) -> list[LabelledRow]:
    """Rows whose prompt leaves room for its answer, and for the longest completion that a method draws. A token is a
    byte or more, so that only long rows are tokenised."""
    context = context_of(folder)
    if context is None:
        return list(rows)
    drawn = max(method.completion_tokens or 1 for method in training.by_name().values())
    long = [i for i, row in enumerate(rows) if _most_tokens(row, drawn) > context]
    if not long:
        return list(rows)
    from pipeline.models.rendering import rendered  # a status imports this module, and no template engine
    from pipeline.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(folder))

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def needed(row: LabelledRow) -> int:
        return tokens(rendered(tokenizer, json.loads(row.prompt))) + max(tokens(row.completion) + 1, drawn)

    beyond = {i for i in long if needed(rows[i]) > context}
    return [row for i, row in enumerate(rows) if i not in beyond]


def _most_tokens(row: LabelledRow, drawn: int) -> int:
    return len(row.prompt.encode()) + max(len(row.completion.encode()), drawn) + TEMPLATE_TOKENS
