"""Both orders of some pairs of answers to one prompt: a judge's noise, seen without anybody's help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.core.estimate import Estimate, share
from pipeline.rewards.findings import JournalLine, key_of
from pipeline.rewards.judge import Preferred
from pipeline.rewards.samples import RewardSample

REMEMBERED = 100
"""Prompts that are remembered, as a multiple of the pairs that are wanted: of endless traffic, the beginning."""


class OrderChecks:
    """At most `most` pairs of one iteration, chosen as the traffic comes."""

    def __init__(self, judge_id: str, iteration: str, most: int) -> None:
        self._judge_id, self._iteration, self._most = judge_id, iteration, most
        self._first_of: dict[str, RewardSample] = {}
        self._consistent: dict[str, bool | None] = {}

    def new_day(self) -> None:
        """Answers are compared within a day: the journal of a day speaks of its own traces."""
        self._first_of.clear()

    def unanswered(
        self, judged: Sequence[RewardSample], answered: Mapping[str, JournalLine]
    ) -> Iterator[tuple[str, RewardSample, RewardSample]]:
        """Keys and pairs that are yet to be compared, while there are fewer than wanted."""
        for sample in judged:
            first = self._first_of.get(sample.prompt)
            if first is None:
                if len(self._first_of) < REMEMBERED * self._most:
                    self._first_of[sample.prompt] = sample
            elif first.completion != sample.completion and len(self._consistent) < self._most:
                del self._first_of[sample.prompt]
                key = key_of("order", self._judge_id, first.prompt, first.completion, sample.completion)
                self._consistent[key] = None
                if key in answered and not answered[key].again:
                    values = answered[key].values
                    self._consistent[key] = bool(values["consistent"]) if "consistent" in values else None
                else:
                    yield key, first, sample

    def note(self, key: str, first: RewardSample, preference: Preferred) -> JournalLine:
        """Count a comparison; its line for the journal."""
        self._consistent[key] = preference.consistent
        values = {} if preference.consistent is None else {"consistent": float(preference.consistent)}
        missing = {} if preference.consistent is not None else {"consistent": str(preference.reason)}
        return JournalLine(
            key=key,
            source="order",
            iteration=self._iteration,
            trace_id=first.trace_id,
            user_id=first.user_id,
            values=values,
            missing=missing,
            tokens=preference.tokens,
            usd=preference.usd,
            again=not preference.final,
        )

    def contradictions(self) -> Estimate:
        """Share of the pairs on which the judge contradicts itself when their order is swapped."""
        both = [consistent for consistent in self._consistent.values() if consistent is not None]
        return share(sum(not consistent for consistent in both), len(both))
