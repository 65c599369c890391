"""Labels for a person to look at: the highest, the lowest and those without one, with how each came to be. Their texts
are on a page in `iterations/<id>/label_examples/`, which an erasure deletes."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.conversation import shown, shown_answer
from pipeline.core.iteration import Iteration
from pipeline.core.storage import DatasetRef, Store, write_atomically
from pipeline.rewards.records import LABELS, LabelSample

MAX_TEXT = 300


def examples(labels: DatasetRef, n: int = 12) -> tuple[LabelSample, ...]:
    """`samples` of the newest part of a published table: they do not need all of it in memory."""
    parts = sorted(Path(labels.uri).glob("*.parquet"))
    return samples(pq.read_table(parts[-1], schema=LABELS), n) if parts else ()


def samples(labels: pa.Table, n: int) -> tuple[LabelSample, ...]:
    """At most `n` rows: in turn a high one, a low one, one without a label. The same whatever their order."""
    columns = (labels[name].to_pylist() for name in ("trace_id", "observation_id", "final_reward"))
    rows = [(reward, (trace, place), at) for at, (trace, place, reward) in enumerate(zip(*columns, strict=True))]
    low = sorted(row for row in rows if row[0] is not None)
    high = sorted(low, key=lambda row: (-row[0], row[1]))
    silent = sorted(row for row in rows if row[0] is None)
    turns = chain(*zip_longest(high[:n], low[:n], silent[:n]))
    chosen = list(dict.fromkeys(row[2] for row in turns if row is not None))[:n]
    return tuple(
        LabelSample(
            trace_id=row["trace_id"],
            prompt=cut(chat(row["prompt"])),
            completion=cut(shown_answer(row["completion"] or "")),
            final_reward=row["final_reward"],
            why=why(row),
        )
        for row in labels.take(pa.array(chosen, pa.int64())).to_pylist()
    )


def why(row: Mapping[str, Any]) -> str:
    """How a label came to be, in words: `correct 1.00 x 0.87 + format 0.00 x 0.13`; or why there is none."""
    weights, missing = json.loads(row["weights"] or "{}"), json.loads(row["missing"] or "{}")
    silent = ", ".join(f"{name} is missing ({reason})" for name, reason in missing.items())
    parts = " + ".join(f"{name} {row[name]:.2f} x {weight:.2f}" for name, weight in weights.items())
    came = f"no label: {row['reason']}" if row["final_reward"] is None else parts
    return f"{came}; {silent}" if silent else came


def chat(prompt: str | None) -> str:
    """Chat messages as text, each with its role; what is not chat messages stays as it is."""
    try:
        messages = json.loads(prompt or "[]")
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in shown(messages))
    except (ValueError, TypeError, KeyError, AttributeError):
        return prompt or ""


def cut(text: str, most: int = MAX_TEXT) -> str:
    """The text, or its beginning with an ellipsis, `most` characters long."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def page(store: Store, iteration: Iteration, shown: Sequence[LabelSample]) -> Path:
    """Write the examples; the path of the page. Texts are code blocks: nothing in them is Markdown."""
    path = store.path(iteration.path(layout.LABEL_EXAMPLES), "examples.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "\n".join(map(_section, shown)))
    return path


def _section(sample: LabelSample) -> str:
    reward = "none" if sample.final_reward is None else f"{sample.final_reward:.2f}"
    texts = (sample.why, sample.prompt, sample.completion, f"trace {sample.trace_id}")
    blocks = ("\n".join(f"    {line}" for line in text.splitlines()) or "    (empty)" for text in texts)
    return f"## {reward}\n\n" + "\n\n".join(blocks) + "\n"
