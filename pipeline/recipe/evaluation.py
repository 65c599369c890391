"""Recipe section `evaluation`: the suites, how they are answered, and how sure the gate has to be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from pipeline.recipe.rewards import Judge
from pipeline.recipe.serving import AnyServing, TransformersServing
from pipeline.recipe.suites import AnySuite, ArithmeticSuite, JudgedSuite, LibrarySuite, SuiteSection
from pipeline.section import Section, Share


def _absent(value: object) -> bool:
    """Left out of the section as JSON: the digest of a recipe without it is what it was before there was the field."""
    return value is None


class AnswerPrice(Section):
    """What tokens cost where the model serves, or what they would cost to buy."""

    usd_per_million_prompt_tokens: NonNegativeFloat = 0.0
    """Price of what is sent."""
    usd_per_million_completion_tokens: NonNegativeFloat = 0.0
    """Price of what is answered."""


class Evaluation(Section):
    """The gate's protocol; compared runs share every field (evals/gate.py holds the rule)."""

    suites: tuple[AnySuite, ...] = Field(default=(ArithmeticSuite(),), min_length=1)
    """What is asked. At least one of them is a target."""
    serving: AnyServing = TransformersServing()
    """What answers."""
    samples_per_item: PositiveInt = 4
    """Answers that each model draws for an item; their mean is the score on that item."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of both models. At 1 they answer as users get their answers."""
    max_completion_tokens: PositiveInt = 512
    """Length limit of an answer, also of the embedded slots'. An answer that reaches it is truncated."""
    seed: int = 11
    """Seed of the draw of the items, of the sampling of both models and of the bootstrap."""
    improve: Literal["all", "any", "cost"] = "all"
    """all: every target improves. any: at least one does (tested at alpha over their number), and none is worse than
    its margin. cost: none is worse than its margin, and answers are shorter by `cheaper_by`."""
    cheaper_by: Share = 0.1
    """With `improve: cost`: share of the tokens of an answer that must be shown to be saved."""
    alpha: Share = 0.05
    """One-sided level of every guard and, where `luck_per_year` is null, of the improvement test."""
    luck_per_year: Share | None = 0.05
    """Chance that a year of gates lets a candidate pass that is no better than its champion. The improvement test has
    this level divided by `gates_per_year` (Bonferroni), which takes about 2.2 times the samples of a level of 0.05 at
    the same power; 0.05 and 20 gates at 0.05 each would let one pass in 64 of 100 years. null: each gate is tested at
    `alpha`, and luck adds up."""
    gates_per_year: PositiveInt = 20
    """Candidates that a year may bring to the gate. The ledger (evals/ledger.py) adds up the levels of their tests;
    beyond `luck_per_year` the verdict is INCONCLUSIVE until the oldest is a year ago."""
    futility: bool = Field(default=True, exclude_if=bool)
    """Stop asking the candidate, with FAIL, once the whole evaluation has become unlikely (under 10%) to show the
    improvement. false: every answer is asked."""
    guard_margin: Share = 0.03
    """Non-inferiority margin of the guards that are shares of answers: without an answer, truncated, refused."""
    longer_by: PositiveFloat = 0.3
    """Growth of the mean length of an answer that is still borne, as a share of the champion's."""
    max_standard_error: PositiveFloat = 0.03
    """A wider standard error of the paired difference of a target cannot carry a verdict: INCONCLUSIVE."""

    price: AnswerPrice | None = Field(default=None, exclude_if=_absent)
    """Reports say what an answer of each model costs at this price; null: they do not."""
    max_usd_per_answer: PositiveFloat | None = Field(default=None, exclude_if=_absent)
    """Mean cost of the candidate's answers that may not be exceeded, on every target and guard; null: any cost."""
    judge: Judge | None = Field(default=None, exclude_if=lambda judge: judge is None)
    """Who judges the judged suites, at the endpoint of JUDGE_URL; null: the model of `rewards.judge`. Another one than
    labels: what a policy was trained to please cannot say that it has become better."""

    @model_validator(mode="after")
    def _possible(self) -> Evaluation:
        if self.max_usd_per_answer is not None and self.price is None:
            raise ValueError("max_usd_per_answer is a budget, and no price is known. Set price as well.")
        if repeated := [name for name, times in Counter(each.name for each in self.suites).items() if times > 1]:
            raise ValueError(f"two suites are named {repeated[0]}: give each a name of its own.")
        if not self.targets:
            raise ValueError("no suite has the role target: nothing could be shown to improve. Give one that role.")
        names = [each.name for each in self.asked if each.role != "confirm"]
        for judged in self.judged:
            if judged.over not in names:
                raise ValueError(
                    f"the suite {judged.name} judges answers to {judged.over}, which is no suite with items. Set over "
                    f"to one of {', '.join(names) or 'the suites that you add'}."
                )
        if all(each.role == "report" for each in self.asked):
            raise ValueError(
                "a judge would decide alone, and judges can be pleased without being right. Give a suite whose answers "
                "are checked the role target or guard."
            )
        if self.improve == "cost" and all(each.role != "target" for each in self.asked):
            raise ValueError(
                "improve: cost asks for shorter answers to a target, and the only targets are judged. Give a suite "
                "whose answers are checked the role target."
            )
        for each in self.asked:
            if each.confirms is not None:
                self._check_confirmation(each)
        library = next((each for each in self.suites if isinstance(each, LibrarySuite)), None)
        if library is not None and self.serving.kind == "transformers":
            raise ValueError(
                f"the suite {library.name} is a library's ({library.kind}), which asks a server by its URL, and "
                "transformers has none. Set serving.kind to vllm or endpoint."
            )
        return self

    def _check_confirmation(self, suite: SuiteSection) -> None:
        target = next((each for each in self.asked if each.name == suite.confirms), None)
        if target is None or target.role != "target":
            names = [each.name for each in self.asked if each.role == "target"]
            raise ValueError(
                f"the suite {suite.name} confirms {suite.confirms}, which is no target with items. Set confirms to one "
                f"of {', '.join(names) or 'the targets that you add'}."
            )
        if sum(each.confirms == suite.confirms for each in self.asked) > 1:
            raise ValueError(f"two suites confirm {suite.confirms}: leave one of them.")
        if self.improve != "all":
            raise ValueError(f"improve: {self.improve} is tested in one step. Take {suite.name} out, or improve all.")

    @property
    def asked(self) -> tuple[SuiteSection, ...]:
        """The suites with items of their own, which both models answer."""
        return tuple(each for each in self.suites if not isinstance(each, JudgedSuite))

    @property
    def judged(self) -> tuple[JudgedSuite, ...]:
        """The suites whose answers are those to another."""
        return tuple(each for each in self.suites if isinstance(each, JudgedSuite))

    @property
    def targets(self) -> tuple[SuiteSection | JudgedSuite, ...]:
        return tuple(each for each in self.suites if each.role == "target")

    def suite(self, name: str) -> SuiteSection:
        """The section of that name, which is one of those asked."""
        return next(each for each in self.asked if each.name == name)

    def gate_alpha(self) -> float:
        """One-sided level of the improvement test as a whole: the gate's part of the year's luck, at most `alpha`."""
        return self.alpha if self.luck_per_year is None else min(self.alpha, self.luck_per_year / self.gates_per_year)

    def target_alpha(self, suite: SuiteSection, confirming: Collection[str]) -> float:
        """One-sided level at which a suite's improvement is tested where the suites named in `confirming` are asked in
        a second step: the two tests of a pair have the gate's level together."""
        pair = {suite.name, *(each.name for each in self.asked if each.confirms == suite.name)}
        return math.sqrt(self.gate_alpha()) if pair & {*confirming} else self.improvement_alpha()

    def improvement_alpha(self) -> float:
        """One-sided level at which one target is tested."""
        return self.gate_alpha() / len(self.targets) if self.improve == "any" else self.gate_alpha()
