"""Recipe section `evaluation`: the suites, how they are answered, and how sure the gate has to be."""

from collections import Counter
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from pipeline.core.locations import Uri
from pipeline.recipe.custom import CustomCode
from pipeline.recipe.rewards import Judge, TokenPrice, VerifierKind
from pipeline.recipe.section import Operational, Section, Share
from pipeline.recipe.serving import AnyServing, TransformersServing

Role = Literal["target", "guard", "report"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
Sha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
ItemsPreset = Literal["arithmetic", "desk", "gsm8k", "math500", "aime", "gpqa"]
EMBEDDED = ("arithmetic", "desk")
"""Presets that the demo writes below the data root, each for its own embedded model."""
PRESETS: dict[str, dict[str, Any]] = {
    "arithmetic": {"name": "arithmetic", "items": 500},
    "desk": {
        "name": "desk",
        "items": 400,
        "system": "You answer for the shop Bluefin. Keep a calm tone. No voucher.",
    },
    "gsm8k": {
        "name": "gsm8k",
        "sha256": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        "instruction": "\nReason step by step, and end with a line of its own: #### and the number alone.",
        "fields": {"prompt": "question", "reference": "answer"},
    },
    "math500": {
        "name": "math500",
        "sha256": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
        "instruction": "\nReason step by step, and put the final answer into \\boxed{}.",
        "fields": {"prompt": "problem", "reference": "answer", "slice": "level"},
    },
    "aime": {
        "name": "aime",
        "role": "report",
        "instruction": "\nReason step by step, and put the final answer, a whole number, into \\boxed{}.",
        "fields": {"prompt": "problem", "reference": "answer", "slice": "year"},
        "samples_per_item": 16,
        "temperature": 0.6,
        "max_completion_tokens": 32_768,
        "pass_at": (1, 8, 16),
    },
    "gpqa": {
        "name": "gpqa",
        "check": "choice",
        "instruction": "\nReason step by step, and end with a line of its own: Answer: and the letter alone.",
        "fields": {"prompt": "Question", "reference": "Correct Answer", "slice": "High-level domain"},
    },
    "production": {"name": "production"},
    "golden": {"name": "golden", "max_principal_share": 0.1},
}
"""Fields that a preset sets where the recipe does not."""


class PresetSuite(Section):
    """What suites have whose answers may decide."""

    name: Name = ""
    """Unique among the suites: names files, reports and charts. Lower case, digits, dash and underscore. Left out, it
    is that of the preset."""
    role: Role = "target"
    """target: the candidate must be better here. guard: it must not be worse than `margin`. report: it is measured,
    and decides nothing."""
    margin: Share = 0.03
    """Of a guard: the loss of its score that is still borne."""
    floor: Share | None = None
    """Score that the candidate must be shown to reach, whatever the champion's; null: none."""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, given: Any) -> Any:
        return {**PRESETS.get(str(given.get("preset")), {}), **given} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.name:
            raise ValueError("give the suite a name.")
        return self


class Columns(NamedTuple):
    """Which field of a line holds what; "" where none does."""

    messages: str = ""
    tools: str = ""
    prompt: str = ""
    reference: str = ""
    cluster: str = ""
    slice: str = ""
    id: str = ""
    check: str = ""


class ItemsSuite(PresetSuite):
    """Items with references: of a file (JSON lines, one JSON array, CSV or Parquet), of code of your own, or of the
    demo. An item has `prompt` or `messages`, `reference` (a text, a number, or a list of texts of which any is right),
    and where there are some `tools`, `id`, `cluster`, `slice` and `check`. Messages and tools are as OpenAI's chat has
    them, with calls and their results."""

    kind: Literal["items"] = "items"
    preset: ItemsPreset | None = None
    """With `path` of the publishers' file: gsm8k, the 1,319 test problems of arXiv 2110.14168; math500, the 500 that
    arXiv 2305.20050 tests on, by level; aime, 30 problems of a year, 16 answers of each at temperature 0.6, for a
    report; gpqa, the multiple choice of arXiv 2311.12022, by domain. arithmetic, desk: 500 and 400 questions made for
    the embedded models."""
    samples_per_item: PositiveInt | None = None
    """Answers that each model draws for an item; null: `evaluation.samples_per_item`."""
    max_completion_tokens: PositiveInt | None = None
    """Length limit of an answer; null: `evaluation.max_completion_tokens`."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature; null: `evaluation.temperature`. 0 takes the likeliest token and draws once: for reports."""
    system: str = ""
    """System prompt before each item that has none of its own."""
    instruction: str = ""
    """Text after each item's last message: how to give the answer so that the check reads it."""
    pass_at: tuple[PositiveInt, ...] = ()
    """Report pass@k for these k: the chance that one of k answers is right (arXiv 2107.03374)."""
    path: Annotated[Uri, Operational] = ""
    """The file. Its content decides, by `sha256`, not where it lies."""
    sha256: Sha256 = ""
    """Digest of the file's bytes; may be left out below the data root alone."""
    custom: CustomCode | None = None
    """Code of your own that makes the items (docs/custom.md), in place of a file."""
    items: PositiveInt | None = None
    """Draw so many of its items, by `evaluation.seed`; null: all. Under 30 the verdict is INCONCLUSIVE."""
    check: VerifierKind | Literal["none"] = "math"
    """How an answer is compared with its reference, where the item does not say. none: items have no reference, and
    only suites that judge read the answers; the role is then report."""
    fields: dict[Literal["messages", "tools", "prompt", "reference", "cluster", "slice", "id", "check"], str] = Field(
        default={}
    )
    """Names of these fields in the file, where they are others: `{prompt: question, reference: answer}`. Of the
    reference also a path: `answer.aliases`."""
    ignore: tuple[str, ...] = ()
    """Fields of the file that are not read. Any other unknown field is an error: it may be a cluster, misspelt."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.temperature == 0 and (self.role != "report" or (self.samples_per_item or 1) != 1):
            raise ValueError("temperature 0 gives one answer, as no user gets it: use role report, samples_per_item 1.")
        if bool(self.path) + bool(self.custom) + self.embedded != 1:
            raise ValueError(f"give the suite path or custom, or one of the presets {' and '.join(EMBEDDED)}: one.")
        if self.check == "none" and (self.role != "report" or self.floor is not None):
            raise ValueError(
                "check: none says nothing of an answer, so the suite cannot gate: set role: report and no floor, and "
                "add a suite of kind judged over it."
            )
        return self

    @property
    def embedded(self) -> bool:
        return self.preset in EMBEDDED

    def columns(self) -> Columns:
        """Which field of a line holds what. The other fields of a file that others publish are not read."""
        own = {} if self.preset else {name: name for name in Columns._fields}
        return Columns(**{**own, **self.fields})


class TracesSuite(PresetSuite):
    """Items drawn from production, frozen below the data root: training never sees them, or what is near them."""

    kind: Literal["traces"] = "traces"
    preset: Literal["production", "golden"]
    """production: prompts of consented traces that have a reference answer. golden: what users ask, with the answers
    that people wrote on the review sheets (column `reference`); one user's share of the items is then 0.1."""
    role: Role = "report"
    """report until there are enough items: a gating suite of under 30 clusters is INCONCLUSIVE."""
    items: PositiveInt = 500
    """Items of a generation, at most. Of a production suite also at most a fifth of the window's prompts: training has
    the others."""
    check: VerifierKind = "math"
    """How an answer is compared with people's reference; traces say it of theirs."""
    max_principal_share: Share = 0.02
    """One user's share of the items (one item is always allowed)."""
    refresh_days: ClassVar[int] = 30
    """Days after which the next iteration freezes a new generation."""
    samples_per_item: ClassVar[int | None] = None
    max_completion_tokens: ClassVar[int | None] = None
    temperature: ClassVar[float | None] = None
    system: ClassVar[str] = ""
    instruction: ClassVar[str] = ""
    pass_at: ClassVar[tuple[int, ...]] = ()

    @property
    def max_tenant_share(self) -> float:
        """One tenant's share of the items, where there are several; answers that people wrote are not bounded."""
        return 1.0 if self.preset == "golden" else 0.1


SuiteSection = ItemsSuite | TracesSuite
"""The suites with items of their own, which both models answer."""


class JudgedSuite(Section):
    """The answers to another suite's items, judged in pairs by the model of `evaluation.judge`, or of
    `rewards.judge`: how often the candidate's is preferred, at equal lengths."""

    kind: Literal["judged"] = "judged"
    name: Name
    """Unique among the suites: names files, reports and charts. Lower case, digits, dash and underscore."""
    over: Name
    """The suite whose items are judged. Of each item the first answer of both models is; it is not asked again."""
    role: Role = "report"
    """target: the candidate must be preferred, at a rate above one half. guard: its rate must not be below one half by
    `margin`. report: it is measured, and decides nothing. A judge never decides alone: another suite gates as well."""
    margin: Share = 0.05
    """Of a guard: how far below one half the candidate's rate may lie."""
    items: PositiveInt | None = None
    """Judge so many of the items, drawn by `evaluation.seed`; null: all."""


AnySuite = Annotated[ItemsSuite | TracesSuite | JudgedSuite, Field(discriminator="kind")]


def preset_suite(preset: str, **changes: Any) -> ItemsSuite:
    """A suite of a preset, with other fields where they are given."""
    return ItemsSuite.model_validate({"preset": preset, **changes})


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
    """Seed of the draw of the items, of the bootstrap and, with the candidate, of the sampling of both models."""
    alpha: Share = 0.05
    """One-sided level of every guard."""
    false_discovery_rate: Share = 0.05
    """Share of the promoted candidates that may be no better, expected over a year. The ledger derives the one-sided
    level of each gate's improvement test from it, and a promotion raises the next ones (evals/luck.py)."""
    expected_gain: Share = 0.03
    """Rise of a target's score that the traces of one night are expected to bring; those of n nights bring sqrt(n)
    times as much. Nights on which the gate would show it with a power below 0.5 collect, for seven nights at most."""
    guard_margin: Share = 0.03
    """Non-inferiority margin of the guards that are shares of answers: without an answer, truncated, refused."""
    longer_by: PositiveFloat = 0.3
    """Growth of the mean length of an answer that is still borne, as a share of the champion's."""
    max_standard_error: PositiveFloat = 0.03
    """A wider standard error of the paired difference of a target cannot carry a verdict: INCONCLUSIVE."""

    price: TokenPrice | None = None
    """Reports say what an answer of each model costs at this price; null: they do not."""
    judge: Judge | None = None
    """Who judges the judged suites, at the endpoint of JUDGE_URL; null: the model of `rewards.judge`. Another one than
    labels: what a policy was trained to please cannot say that it has become better."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if repeated := [name for name, times in Counter(each.name for each in self.suites).items() if times > 1]:
            raise ValueError(f"two suites are named {repeated[0]}: give each a name of its own.")
        if not self.targets:
            raise ValueError("no suite has the role target: nothing could be shown to improve. Give one that role.")
        names = [each.name for each in self.asked]
        for judged in self.judged:
            if judged.over not in names:
                raise ValueError(f"the suite {judged.name} judges {judged.over}, which is no suite with items.")
        if all(each.role == "report" for each in self.asked):
            raise ValueError(
                "a judge would decide alone, and judges can be pleased without being right. Give a suite whose answers "
                "are checked the role target or guard."
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

    @property
    def gating(self) -> frozenset[str]:
        """Names of the suites with items on which a verdict rests, by their own role or by that of a judged suite."""
        own = {each.name for each in self.asked if each.role != "report"}
        return frozenset(own | {each.over for each in self.judged if each.role != "report"})

    def suite(self, name: str) -> SuiteSection:
        """The section of that name, which is one of those asked."""
        return next(each for each in self.asked if each.name == name)

    def judged_suite(self, name: str) -> JudgedSuite:
        return next(each for each in self.judged if each.name == name)
