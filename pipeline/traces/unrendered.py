"""Refuses rows that the champion cannot take, before anything is paid for: its chat template leaves a part out, or its
embedding has no row for a token. Rows are read only where it lacks something."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core.conversation import Messages, answer_of, conversation, is_whole
from pipeline.core.iteration import Iteration
from pipeline.models.rendering import WITHOUT_TOOLS, folder_template, kinds_of, left_out, refusal
from pipeline.models.tokenizer import tokens_without_rows
from pipeline.traces.arrow import pc
from pipeline.traces.context import StageContext
from pipeline.traces.lake import open_lake
from pipeline.traces.materialize import window_of
from pipeline.traces.scope import where

COLUMNS = ("messages", "completion", "tool_calls", "tools", "consent")


def refuse_unrendered_rows(context: StageContext, iteration: Iteration) -> None:
    """Raises ValueError with the counts of what the model lacks for rows that are to be trained on."""
    folder = Path(iteration.champion.uri)
    template = folder_template(folder) if folder.is_dir() else None
    if template is None:  # whoever loads the model says so
        return
    takes_all, lacks = context.recipe.selection.tools == "train", left_out(template)
    wanted, absent = lacks if takes_all else lacks & WITHOUT_TOOLS, tokens_without_rows(folder)
    if not wanted and not absent:
        return
    # Rows that are more than one question with a text as its answer; the others are not decoded.
    plain = pc.field("tools").is_null() & pc.field("tool_calls").is_null()
    more = (pc.list_value_length(pc.field("messages")) > 1) | ~plain
    counts, lost, rows = Counter[str](), Counter[str](), 0
    with open_lake(context.lake) as lake:
        window = window_of(context.store, lake, iteration.dataset)
        for batch in lake.batches(window.days, window.snapshot, COLUMNS, where(window.scope)):
            table = pa.table(batch).filter(pc.field("consent"))
            rows += table.num_rows
            for row in (table if absent else table.filter(more)).to_pylist():
                messages = _whole_conversation(row)
                kinds = kinds_of(messages)
                if takes_all or kinds <= WITHOUT_TOOLS:
                    counts.update(kinds & wanted)
                    lost.update(token for token in absent if any(token in each["content"] for each in messages))
    if counts:
        raise ValueError(refusal(iteration.champion.uri, dict(sorted(counts.items())), rows))
    if lost:
        counted = ", ".join(f"{token} ({count:,} of {rows:,} rows)" for token, count in sorted(lost.items()))
        raise ValueError(
            f"The embedding of {iteration.champion.uri} has no row for {counted}. Resize it (resize_token_embeddings) "
            "and save the model."
        )


def _whole_conversation(row: Mapping[str, Any]) -> Messages:
    """A governed row with its answer; nothing where a call is invalid, as the row then has no label."""
    messages = conversation(row)
    if not is_whole(messages, row["tool_calls"]):
        return []
    return [*messages, {"role": "assistant", "content": answer_of(row["completion"], row["tool_calls"])}]
