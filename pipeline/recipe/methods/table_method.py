"""What the methods share that draw nothing: a step goes through so many rows of a table."""

from __future__ import annotations

from typing import Annotated

from pydantic import PositiveFloat, PositiveInt

from pipeline.recipe.methods.method import Method
from pipeline.recipe.section import Observer


class TableMethod(Method):
    """A method whose every step reads `batch_size` rows of its table."""

    batch_size: PositiveInt
    """Rows in a step."""
    kl_stop: Annotated[PositiveFloat | None, Observer]
    """KL to the base model in nats an answer, on held-out prompts, above which the training is stopped."""

    @property
    def examples_per_update(self) -> int:
        return self.batch_size

    @property
    def scheduled_rows(self) -> int:
        return self.steps * self.batch_size

    @property
    def answer_kl_stop(self) -> float | None:
        return self.kl_stop
