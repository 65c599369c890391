"""TRL's KTOTrainer over rows that are tokenised already, with its reference point named for what it is.

TRL logs KTO's reference point z0, an estimate in nats an answer over swapped answers, as `kl`, which every other
trainer logs in nats a token: the sentinel would stop a healthy training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from trl.trainer.kto_trainer import KTOTrainer

from pipeline.recipe.methods.answers import TokenisedAnswers

REFERENCE_POINT = "reference_point"


class ThumbTrainer(KTOTrainer):
    """Overrides one method that TRL keeps to itself; tests/pipeline/recipe/methods/test_trl.py holds its signature."""

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        return dataset

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for metrics in self._metrics.values():
            if "kl" in metrics:
                metrics[REFERENCE_POINT] = metrics.pop("kl")
        super().log(logs, start_time)


def thumb_dataset(answers: TokenisedAnswers, labels: Sequence[bool], at_once: int) -> Dataset:
    """Rows as KTOTrainer's collator takes them.

    Of `at_once` rows, which a device takes together, each also has the answer of the one before it (the first: of the
    last), by which the paper's reference point is estimated.
    """
    swapped: list[list[int]] = []
    for first in range(0, len(labels), at_once):
        batch = answers.answers[first : first + at_once]
        swapped += [batch[-1], *batch[:-1]]
    return Dataset.from_dict(
        {
            "prompt_ids": answers.prompts,
            "completion_ids": answers.answers,
            "KL_completion_ids": swapped,
            "label": list(labels),
        }
    )
