"""Recipe section `evaluation`: the suites, how they are answered, and how sure the gate has to be."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pipeline.recipe.rewards import Judge, TokenPrice
from pipeline.recipe.section import Section, Share
from pipeline.recipe.serving import AnyServing, TransformersServing
from pipeline.recipe.suites import AnySuite, JudgedSuite, LmEvalSuite, SuiteSection, preset_suite


class Evaluation(Section):
    """The gate's protocol; compared runs share every field (evals/gate.py holds the rule)."""

    suites: tuple[AnySuite, ...] = Field(default=(preset_suite("arithmetic"),), min_length=1)
    """What is asked. At least one of them is a target."""
    serving: AnyServing = TransformersServing()
    """What answers."""
    samples_per_item: PositiveInt = 4
    """Answers that each model draws for an item; their mean is the score on that item."""
    temperature: ClassVar[float] = 1.0
    """Sampling temperature of both models, where a suite does not say: they answer as users get their answers."""
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
    """One-sided level of every guard."""
    improvement_alpha: Share = 0.0025
    """One-sided level of the improvement test. A candidate that is no better passes with this chance at each gate: at
    0.0025 one passes in about 1 of 20 years of 20 gates, at 0.05 in 13 of 20. 0.05 takes 2.2 times fewer samples at
    the same power."""
    guard_margin: Share = 0.03
    """Non-inferiority margin of the guards that are shares of answers: without an answer, truncated, refused."""
    longer_by: PositiveFloat = 0.3
    """Growth of the mean length of an answer that is still borne, as a share of the champion's."""
    max_standard_error: PositiveFloat = 0.03
    """A wider standard error of the paired difference of a target cannot carry a verdict: INCONCLUSIVE."""

    price: TokenPrice | None = None
    """Reports say what an answer of each model costs at this price; null: they do not."""
    judge: Judge | None = Field(default=None, exclude_if=lambda judge: judge is None)
    """Who judges the judged suites, at the endpoint of JUDGE_URL; null: the model of `rewards.judge`. Another one than
    labels: what a policy was trained to please cannot say that it has become better."""

    @model_validator(mode="after")
    def _possible(self) -> Evaluation:
        if repeated := [name for name, times in Counter(each.name for each in self.suites).items() if times > 1]:
            raise ValueError(f"two suites are named {repeated[0]}: give each a name of its own.")
        if not self.targets:
            raise ValueError("no suite has the role target: nothing could be shown to improve. Give one that role.")
        names = [each.name for each in self.asked]
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
        library = next((each for each in self.suites if isinstance(each, LmEvalSuite)), None)
        if library is not None and self.serving.kind == "transformers":
            raise ValueError(
                f"the suite {library.name} is of lm-evaluation-harness, which asks a server by its URL, and "
                "transformers has none. Set serving.kind to vllm or endpoint."
            )
        return self

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

    def judged_suite(self, name: str) -> JudgedSuite:
        return next(each for each in self.judged if each.name == name)

    def improves(self, role: str) -> bool:
        """Whether a suite of that role must show a better score."""
        return role == "target" and self.improve != "cost"

    def target_alpha(self) -> float:
        """One-sided level at which one target is tested: where one of them is enough, they share the level."""
        return self.improvement_alpha / len(self.targets) if self.improve == "any" else self.improvement_alpha
