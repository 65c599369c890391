"""The preference dataset: pairs for DPO and prompts for GRPO, built from one labelled set.

Owns grouping by prompt, pairing, the cap on one user's influence and decontamination. Both tables are in TRL's own
conversational columns, so a trainer reads them as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.iteration import Iteration
from pipeline.recipe import Selection
from pipeline.selection.evidence import Evidence, Labelled, always_right, measure
from pipeline.storage import DatasetRef, Record, Store, digest_file
from pipeline.traces.erased import publishing

MAX_CONTAMINATION = 0.01

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
PAIRS = pa.schema(
    {
        "prompt": _MESSAGES,
        "chosen": _MESSAGES,
        "rejected": _MESSAGES,
        "margin": pa.float64(),
        "chosen_trace": pa.string(),
        "rejected_trace": pa.string(),
    }
)
PROMPTS = pa.schema([("prompt", _MESSAGES), ("reference", pa.string()), ("mixed", pa.bool_())])


class PreferenceDataset(Record):
    """References to both tables, and the evidence that they were built with."""

    iteration: str
    pairs: DatasetRef
    prompts: DatasetRef
    evidence: Evidence
    contaminated: int
    capped_pairs: int


class Pair(Record):
    prompt: str
    chosen: str
    rejected: str
    margin: float
    traces: tuple[str, str]
    users: tuple[str, str]


def build(
    store: Store, iteration: Iteration, labels: DatasetRef, thresholds: Selection, held_out: Collection[str]
) -> PreferenceDataset:
    """Build and publish both tables once. `held_out` are the normalised prompts of every evaluation suite.

    Raises ValueError when more than 1% of the prompts are held-out ones: then the split is broken, not dirty.
    """

    def make() -> PreferenceDataset:
        rows = read_labels(labels)
        hidden = frozenset(held_out)
        clean = [row for row in rows if normalised(row.prompt) not in hidden]
        contaminated = len(rows) - len(clean)
        if contaminated > MAX_CONTAMINATION * max(len(rows), 1):
            raise ValueError(
                f"{contaminated} of {len(rows)} traces ask held-out questions (limit {MAX_CONTAMINATION:.0%}). "
                "Change the evaluation suite or its seed: it is no longer unseen."
            )
        groups = by_prompt(clean)
        built = pairs(groups, thresholds)
        kept = cap_principals(built, thresholds.max_principal_share)
        prompt_rows = prompts(groups)
        folder = iteration.path("preference_dataset")
        with store.staged(folder) as staging:
            pq.write_table(pa.Table.from_pylist([_pair_row(p) for p in kept], schema=PAIRS), staging / "pairs.parquet")
            pq.write_table(pa.Table.from_pylist(prompt_rows, schema=PROMPTS), staging / "prompts.parquet")
        return PreferenceDataset(
            iteration=iteration.id,
            pairs=_ref(store, f"{folder}/pairs.parquet", len(kept)),
            prompts=_ref(store, f"{folder}/prompts.parquet", len(prompt_rows)),
            evidence=measure(clean, groups, [pair.margin for pair in kept]),
            contaminated=contaminated,
            capped_pairs=len(built) - len(kept),
        )

    with publishing(store):
        return store.once(iteration.path("preference_dataset.json"), PreferenceDataset, make)


def read_labels(labels: DatasetRef) -> list[Labelled]:
    table = pq.read_table(labels.uri, columns=list(Labelled._fields))
    return [Labelled(**row) for row in table.to_pylist()]


def by_prompt(rows: Sequence[Labelled]) -> dict[str, list[Labelled]]:
    groups: dict[str, list[Labelled]] = {}
    for row in sorted(rows, key=lambda row: row.trace_id):  # the order of files must not decide a pair
        groups.setdefault(row.prompt, []).append(row)
    return groups


def pairs(groups: dict[str, list[Labelled]], thresholds: Selection) -> list[Pair]:
    """Best against worst, then second best against second worst, while the thresholds hold."""
    found: list[Pair] = []
    for prompt, group in groups.items():
        ranked = sorted(
            ((row.final_reward, row) for row in group if row.final_reward is not None),
            key=lambda item: (-item[0], item[1].trace_id),
        )
        both_ends = list(zip(ranked, reversed(ranked), strict=True))[: len(ranked) // 2]
        for (high, best), (low, worst) in both_ends[: thresholds.max_pairs_per_prompt]:
            clear = high >= thresholds.chosen_min and low < thresholds.rejected_max
            if clear and high - low >= thresholds.margin_min and best.completion != worst.completion:
                found.append(
                    Pair(
                        prompt=prompt,
                        chosen=best.completion,
                        rejected=worst.completion,
                        margin=high - low,
                        traces=(best.trace_id, worst.trace_id),
                        users=(best.user_id, worst.user_id),
                    )
                )
    return found


def cap_principals(found: list[Pair], max_share: float) -> list[Pair]:
    """Drop pairs until no user is behind more than `max_share` of those that remain (one pair is always allowed)."""
    kept = found
    while True:
        allowed = max(1, int(max_share * len(kept)))
        counts: Counter[str] = Counter()
        within: list[Pair] = []
        for pair in kept:
            users = set(pair.users)
            if all(counts[user] < allowed for user in users):
                counts.update(users)
                within.append(pair)
        if len(within) == len(kept):
            return kept
        kept = within


def prompts(groups: dict[str, list[Labelled]]) -> list[dict[str, Any]]:
    """Verifiable prompts that are not always right; `mixed` marks those with right and wrong completions on record."""
    rows: list[dict[str, Any]] = []
    for prompt, group in groups.items():
        reference = next((row.reference for row in group if row.reference), None)
        if reference is None or always_right(group):
            continue
        seen = {row.correct for row in group if row.correct is not None}
        rows.append({"prompt": json.loads(prompt), "reference": reference, "mixed": len(seen) > 1})
    return rows


def normalised(prompt: str) -> str:
    """The words of a chat prompt in lower case, for exact matching against held-out items."""
    return " ".join(" ".join(message["content"] for message in json.loads(prompt)).lower().split())


def _pair_row(pair: Pair) -> dict[str, Any]:
    return {
        "prompt": json.loads(pair.prompt),
        "chosen": [{"role": "assistant", "content": pair.chosen}],
        "rejected": [{"role": "assistant", "content": pair.rejected}],
        "margin": pair.margin,
        "chosen_trace": pair.traces[0],
        "rejected_trace": pair.traces[1],
    }


def _ref(store: Store, name: str, rows: int) -> DatasetRef:
    path = store.path(name)
    return DatasetRef(uri=str(path), rows=rows, digest=digest_file(path))
