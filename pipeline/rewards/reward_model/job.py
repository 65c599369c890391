"""What the training process is given and what it leaves: two files, as for the policy's trainer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from pipeline.core.storage import Record
from pipeline.recipe.reward_model import RewardModelSettings

JOB_FILE, RESULT_FILE, ROWS_FILE = "job.json", "trained.json", "rows.parquet"
MODEL_FOLDER, CARD_FILE = "model", "card.md"
"""Below the iteration's `reward_model/`."""
NEVER_RETRY = 64
"""The training process's exit code where its base is at fault."""
PREFIX = "reward model: "
"""Of the lines that it prints for people."""
PROBE = "probe"
"""The part of answers and twins that are only scored."""
ROWS = pa.schema(
    [
        ("user", pa.string()),  # null for a probe's
        ("prompt", pa.string()),  # chat messages as JSON
        ("completion", pa.string()),
        ("up", pa.bool_()),  # null for a probe's
        ("part", pa.string()),  # train, validation, held_out, probe
    ]
)


class RewardModelJob(Record):
    """One training: `rows` are of ROWS, the weights go to `target`/model, and `trained.json` beside this file."""

    base: str
    rows: str
    target: str
    settings: RewardModelSettings


class RewardModelOutcome(Record):
    """What the process came to. `scores` has a row's place, its value and, where there is none, the reason: of the
    held-out thumbs and the probes."""

    not_trained: str = ""
    epoch: int = 0
    validation_losses: tuple[float, ...] = ()
    scores: tuple[tuple[int, float | None, str], ...] = ()
    unusable: dict[str, int] = {}  # noqa: RUF012 (a pydantic field: copied for each instance)
    """Thumbs that could not be read by the model, by reason."""
    parts: dict[str, tuple[int, int]] = {}  # noqa: RUF012
    """Thumbs and users of each part that were used."""


def result_file(job: Path) -> Path:
    return job.with_name(RESULT_FILE)
