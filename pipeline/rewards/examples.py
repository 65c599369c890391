"""Labels for a person to look at, with their texts, as a page beside the label table.

Owns `iterations/<id>/label_examples/`, which an erasure deletes: no text of a row goes into Dagster's own storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.iteration import Iteration
from pipeline.rewards.records import LABELS, LabelSample
from pipeline.rewards.trust import samples
from pipeline.storage import DatasetRef, Store

SHOWN = 12


def examples(labels: DatasetRef, n: int = SHOWN) -> tuple[LabelSample, ...]:
    """`trust.samples` of the newest part of a published table: they do not need all of it in memory."""
    parts = sorted(Path(labels.uri).glob("*.parquet"))
    return samples(pq.read_table(parts[-1], schema=LABELS), n) if parts else ()


def page(store: Store, iteration: Iteration, shown: Sequence[LabelSample]) -> Path:
    """Write the examples, once; the path of the page."""
    folder = iteration.path("label_examples")
    if not store.path(folder).is_dir():
        with store.staged(folder) as staging:
            (staging / "examples.md").write_text("\n".join(_verdicts_of(each) for each in shown))
    return store.path(folder, "examples.md")


def _verdicts_of(sample: LabelSample) -> str:
    reward = "none" if sample.final_reward is None else f"{sample.final_reward:.2f}"
    texts = "\n\n".join(_indented(text) for text in (sample.prompt, sample.completion))
    return f"## {reward}: {sample.why}\n\n{texts}\n\n    trace {sample.trace_id}\n"


def _indented(text: str) -> str:
    """As a code block, in which nothing that a user wrote is Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines()) or "    (empty)"
