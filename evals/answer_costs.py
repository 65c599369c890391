"""What answers cost in money, for the reader: tokens times the recipe's prices."""

from __future__ import annotations

from collections.abc import Sequence

from evals.results import ItemCounts
from pipeline.core.storage import Record
from pipeline.recipe.evaluation import AnswerPrice


class AnswerCosts(Record):
    """Mean USD of an answer, of both models."""

    champion: float
    candidate: float


def answer_costs(
    before: Sequence[ItemCounts], after: Sequence[ItemCounts], price: AnswerPrice | None
) -> AnswerCosts | None:
    """None without a price."""
    return None if price is None else AnswerCosts(champion=_mean(before, price), candidate=_mean(after, price))


def _mean(arm: Sequence[ItemCounts], price: AnswerPrice) -> float:
    """Of all samples. The prompt is paid for with each of them."""
    prompts = sum(each.samples * each.prompt_tokens for each in arm) * price.usd_per_million_prompt_tokens
    answers = sum(each.tokens for each in arm) * price.usd_per_million_completion_tokens
    return (prompts + answers) / 1e6 / sum(each.samples for each in arm)
