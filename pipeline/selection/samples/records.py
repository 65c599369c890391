"""What the stage `samples` publishes: the table of scored completions, and the record of who drew and scored them."""

import pyarrow as pa
from pydantic import Field

from pipeline.core.storage import DatasetRef, ModelRef, Record
from pipeline.rewards.records import LABELS

SAMPLES = pa.schema(
    [
        *LABELS,  # of the row that the prompt is from; completion, components and reward are the sample's
        ("reward_model", pa.float64()),  # its word, whether or not it counts in the reward
        ("sample", pa.int64()),  # its number among those of its prompt, from 0
        ("finished", pa.bool_()),  # whether it ended by itself
        ("completion_tokens", pa.int64()),
    ]
)
"""One row a completion."""
UNENDED = "unended"
"""Outcome of a completion that was cut at its limit and that no reference can check: it is worth 0."""


class FreshSamples(Record):
    """The samples of one iteration; empty without a section `samples` in the recipe."""

    iteration: str
    dataset: DatasetRef | None = None
    """`uri` is a Parquet file with the columns of SAMPLES."""
    model: ModelRef | None = None
    """The champion."""
    protocol: str = ""
    """Digest of `AnswerProtocol` (pipeline/serving/journal.py)."""
    prompts: int = 0
    refused: int = 0
    """Prompts longer than the model's context, or not rendered by its chat template."""
    drawn: int = 0
    """Completions asked for by this run of the stage; `remembered` were in the journal."""
    remembered: int = 0
    completion_tokens: int = 0
    unended: int = 0
    distinct: float = 0.0
    """Mean share of a prompt's completions that differ in more than white space."""
    labelled: int = 0
    unlabelled: dict[str, int] = Field(default={})
    """Completions without a reward, by reason."""
    outcomes: dict[str, int] = Field(default={})
    mean_reward: float = 0.0
    best_reward: float = 0.0
    """Mean reward of the best completion of each prompt, by the same scorers: optimistic."""
    histogram: tuple[int, ...] = ()
    """Rewards in 20 equal bins of [0, 1]."""
    judge_id: str = ""
    reward_model: str = ""
    """Its digest."""
    seconds: float | None = None
    """Of loading and asking the model, by the attempt that made the record."""
    judge_tokens: int = 0
    usd: float = 0.0
