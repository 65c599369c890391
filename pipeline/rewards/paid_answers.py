"""What of the paid judge's questions is still to be asked, and within which budget.

The key of an answer in the journal holds all that decides it: who judges by what, and what is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.core.storage import Store
from pipeline.recipe.rewards import Judge
from pipeline.rewards.findings import JournalLine, JudgeSpending, Source, spent
from pipeline.rewards.judge.budget import Budget
from pipeline.rewards.samples import RewardSample


class AnswerCount:
    """How many answers were asked for, and how many were known."""

    def __init__(self) -> None:
        self.asked = self.remembered = 0

    def unanswered(
        self, wanted: Mapping[str, RewardSample], answered: Mapping[str, JournalLine]
    ) -> dict[str, RewardSample]:
        """The samples, by key, that have no answer yet or one that may come out otherwise now."""
        todo = {key: sample for key, sample in wanted.items() if key not in answered or answered[key].again}
        self.asked += len(todo)
        self.remembered += len(wanted) - len(todo)
        return todo


class PaidAccount(NamedTuple):
    """What paid answers are booked to, the iteration or a stage of it, and the days whose traces they are about. Each
    account has the whole of a judge's budget."""

    name: str
    days: Sequence[str]

    def budget(
        self,
        section: Judge,
        store: Store,
        sources: Sequence[Source],
        elsewhere: Sequence[JudgeSpending] = (),
    ) -> Budget:
        """What is left of it: less what earlier attempts have spent, and `elsewhere`."""
        paid = [*(spent(store, self.days, self.name, source) for source in sources), *elsewhere]
        return Budget(
            section.max_tokens,
            section.max_usd,
            section.usd_per_million_prompt_tokens,
            section.usd_per_million_completion_tokens,
            spent_tokens=sum(each.tokens for each in paid),
            spent_usd=sum(each.usd for each in paid),
        )
