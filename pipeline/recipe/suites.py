"""Recipe section `evaluation.suites`: what the gate asks, and what each suite decides.

Owns the kinds of suites and their fields. Refuses to read an item: evals/suites does, by kind.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from pipeline.core.locations import Uri
from pipeline.recipe.custom import CustomCode
from pipeline.recipe.rewards import VerifierKind
from pipeline.recipe.section import Operational, Section, Share

Role = Literal["target", "guard", "report"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
Sha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class SuiteSection(Section):
    """What every suite has."""

    name: Name
    """Unique among the suites: names files, reports and charts. Lower case, digits, dash and underscore."""
    role: Role = "target"
    """target: the candidate must be better here. guard: it must not be worse than `margin`. report: it is measured,
    and decides nothing."""
    margin: Share = 0.03
    """Of a guard: the loss of its score that is still borne. Of a target: the same, where `evaluation.improve` is any
    or cost."""
    floor: Share | None = None
    """Score that the candidate must be shown to reach, whatever the champion's; null: none."""
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

    @model_validator(mode="after")
    def _possible(self) -> SuiteSection:
        if self.temperature == 0 and (self.role != "report" or (self.samples_per_item or 1) != 1):
            raise ValueError("temperature 0 gives one answer, as no user gets it: use role report, samples_per_item 1.")
        return self


class ArithmeticSuite(SuiteSection):
    """Word problems in arithmetic, made for the embedded model: of any other it says little."""

    kind: Literal["arithmetic"] = "arithmetic"
    """Which kind of suite this is."""
    name: Name = "arithmetic"
    """Unique among the suites."""
    items: PositiveInt = 500
    """Questions; champion and candidate answer the same ones. Under 30 the verdict is INCONCLUSIVE."""
    seed: int | None = Field(default=None, exclude_if=lambda seed: seed is None)
    """Seed of the draw of the questions; null: `evaluation.seed`."""


class DeskSuite(SuiteSection):
    """Turns of conversations at the embedded support desk about facts that no training shows; an answer is right that
    names the fact, or calls `lookup_order` for it where the conversation does not show it. Whether it is a good answer,
    a judged suite over this one says."""

    kind: Literal["desk"] = "desk"
    """Which kind of suite this is."""
    name: Name = "desk"
    """Unique among the suites."""
    system: str = "You answer for the shop Bluefin. Keep a calm tone. No voucher."
    """System prompt before each item that has none of its own: those with a tool."""
    items: PositiveInt = 400
    """Questions; champion and candidate answer the same ones. Under 30 the verdict is INCONCLUSIVE."""
    seed: int | None = Field(default=None, exclude_if=lambda seed: seed is None)
    """Seed of the draw of the questions; null: `evaluation.seed`."""


EmbeddedSuite = ArithmeticSuite | DeskSuite
"""Suites that the demo writes below the data root, each for its own embedded model."""


class Columns(NamedTuple):
    """Which field of a line holds what; "" where none does."""

    messages: str = ""
    tools: str = ""
    prompt: str = ""
    options: str = ""
    reference: str = ""
    cluster: str = ""
    slice: str = ""
    id: str = ""
    check: str = ""
    format: str = ""


class FileSuite(SuiteSection):
    """A file of JSON lines, an item each."""

    path: Annotated[Uri, Operational]
    """The file. Its content decides, by `sha256`, not where it lies."""
    sha256: Sha256 = ""
    """Digest of the file's bytes; may be left out below the data root alone."""
    items: PositiveInt | None = None
    """Draw so many of its items, by `evaluation.seed`; null: all."""
    check: VerifierKind | Literal["none"] = "math"
    """How an answer is compared with its reference, where the item does not say. none: items have no reference, and
    only suites that judge read the answers; the role is then report."""

    @model_validator(mode="after")
    def _checked(self) -> FileSuite:
        if self.check == "none" and (self.role != "report" or self.floor is not None):
            raise ValueError(
                "check: none says nothing of an answer, so the suite cannot gate: set role: report and no floor, and "
                "add a suite of kind judged over it."
            )
        return self

    def columns(self) -> Columns:
        """Which field of a line holds what. The other fields of a file that others publish are not read."""
        raise NotImplementedError


class JsonlSuite(FileSuite):
    """Items of the user's own: `prompt` or `messages`, `reference` (a text, a number, or a list of texts of which any
    is right), and where there are some `options` of a multiple choice, `tools`, `id`, `cluster`, `slice`, `check` and
    `format`. Messages and tools are as OpenAI's chat has them, with calls and their results."""

    kind: Literal["jsonl"] = "jsonl"
    """Which kind of suite this is."""
    fields: dict[
        Literal["messages", "tools", "prompt", "options", "reference", "cluster", "slice", "id", "check", "format"], str
    ] = Field(default={})
    """Names of these fields in the file, where they are others: `{prompt: question, reference: answer}`."""
    ignore: tuple[str, ...] = ()
    """Fields of the file that are not read. Any other unknown field is an error: it may be a cluster, misspelt."""

    def columns(self) -> Columns:
        return Columns(**{**{name: name for name in Columns._fields}, **self.fields})


class Gsm8kSuite(FileSuite):
    """The test problems of GSM8K (arXiv 2110.14168), from the authors' own file, given by path."""

    kind: Literal["gsm8k"] = "gsm8k"
    """Which kind of suite this is."""
    name: Name = "gsm8k"
    """Unique among the suites."""
    sha256: Sha256 = "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"
    """Digest of the file's bytes: `test.jsonl` of the authors' repository, 1,319 problems."""

    instruction: str = "\nReason step by step, and end with a line of its own: #### and the number alone."
    """Text after each problem."""

    def columns(self) -> Columns:
        return Columns(prompt="question", reference="answer")


class Math500Suite(FileSuite):
    """The 500 problems of MATH that arXiv 2305.20050 tests on, from a file of the user's, given by path."""

    kind: Literal["math500"] = "math500"
    """Which kind of suite this is."""
    name: Name = "math500"
    """Unique among the suites."""
    sha256: Sha256 = "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"
    """Digest of the file's bytes."""
    instruction: str = "\nReason step by step, and put the final answer into \\boxed{}."
    """Text after each problem."""

    def columns(self) -> Columns:
        return Columns(prompt="problem", reference="answer", slice="level")


class LibrarySuite(SuiteSection):
    """A task of an evaluation library. The library runs in a Python environment of its own, asks the engine's server
    (`evaluation.serving` is vllm or endpoint) and grades; its log is read."""

    task: str
    """Where the task is."""
    sha256: Sha256 = ""
    """Digest of the task's file; may be left out below the data root alone."""
    args: dict[str, bool | int | float | str] = Field(default={})
    """Parameters of the task."""
    items: PositiveInt | None = None
    """Draw so many of the task's items, by `evaluation.seed`; null: all."""

    @property
    def file(self) -> str:
        """Path of the task's file."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _as_the_task_has_it(self) -> LibrarySuite:
        if self.system or self.instruction:
            raise ValueError("the task has its own prompts: leave system and instruction out, and change the task.")
        return self


class InspectSuite(LibrarySuite):
    """A task of Inspect (inspect_ai), run by the Python that INSPECT_PYTHON names."""

    kind: Literal["inspect"] = "inspect"
    """Which kind of suite this is."""
    task: Annotated[str, Field(pattern=r"^[^@]+\.py@[A-Za-z_]\w*$")]
    """File and name of the task: `evals/answers.py@support_answers`."""
    scorer: str = ""
    """Name of the scorer that decides, where the task has several."""

    @property
    def file(self) -> str:
        return self.task.rpartition("@")[0]


class LmEvalSuite(LibrarySuite):
    """A task of lm-evaluation-harness, run by the Python that LM_EVAL_PYTHON names. Its log knows neither the length of
    an answer nor whether it was cut, and all its answers have one seed: so the suite reports, and decides nothing."""

    kind: Literal["lm_eval"] = "lm_eval"
    """Which kind of suite this is."""
    role: Role = "report"
    """A report alone: see above."""
    samples_per_item: PositiveInt | None = 1
    """1: under one seed a second answer to the same question would be the first one again."""
    task: Annotated[str, Field(pattern=r"^[^@]+\.ya?ml$")]
    """The task's file."""
    metric: str = "exact_match"
    """Name of the metric that decides: 1 is right, 0 is wrong."""
    filter: str = "none"
    """Name of the task's filter whose answers are scored."""

    @property
    def file(self) -> str:
        return self.task

    @model_validator(mode="after")
    def _reports(self) -> LmEvalSuite:
        if self.role != "report" or self.samples_per_item != 1:
            raise ValueError("a suite of lm-evaluation-harness has role report and samples_per_item 1: set them so.")
        return self


class TracesSuite(SuiteSection):
    """Items drawn from production, frozen below the data root: training never sees them, or what is near them."""

    items: PositiveInt = 500
    """Items of a generation, at most. Of a production suite also at most a fifth of the window's prompts: training has
    the others."""
    max_principal_share: Share = 0.02
    """One user's share of the items (one item is always allowed)."""
    max_tenant_share: Share = 0.10
    """One tenant's share of the items, where there are several tenants."""
    refresh_days: PositiveInt = 30
    """Days after which the next iteration freezes a new generation."""
    refresh_share: Share = 0.25
    """Share of the clusters that a new generation replaces."""


class ProductionSuite(TracesSuite):
    """What users ask: prompts of consented traces that have a reference answer."""

    kind: Literal["production"] = "production"
    """Which kind of suite this is."""
    name: Name = "production"
    """Unique among the suites."""
    role: Role = "report"
    """report until there are enough items: a gating suite of under 30 clusters is INCONCLUSIVE."""


class GoldenSuite(TracesSuite):
    """What users ask, with the answers that people wrote on the review sheets (column `reference`)."""

    kind: Literal["golden"] = "golden"
    """Which kind of suite this is."""
    name: Name = "golden"
    """Unique among the suites."""
    role: Role = "report"
    """As of a production suite. Whatever it is, a suite whose reviewers do not agree decides nothing."""
    max_principal_share: Share = 0.1
    """One user's share of the items (one item is always allowed)."""
    max_tenant_share: Share = 1.0
    """One tenant's share of the items, where there are several tenants."""
    check: VerifierKind = "math"
    """How an answer is compared with its reference."""


class CustomSuite(CustomCode, SuiteSection):
    """Items that code of your own makes, each with the fields of a line of a jsonl suite."""

    kind: Literal["custom"] = "custom"
    """Which kind of suite this is."""
    items: PositiveInt | None = None
    """Draw so many of its items, by `evaluation.seed`; null: all."""
    check: VerifierKind = "math"
    """How an answer is compared with its reference, where the item does not say."""


class JudgedSuite(Section):
    """The answers to another suite's items, judged in pairs by the model of `evaluation.judge`, or of
    `rewards.judge`: how often the candidate's is preferred, at equal lengths."""

    kind: Literal["judged"] = "judged"
    """Which kind of suite this is."""
    name: Name
    """Unique among the suites: names files, reports and charts. Lower case, digits, dash and underscore."""
    over: Name
    """The suite whose items are judged. Of each item the first answer of both models is; it is not asked again."""
    role: Role = "report"
    """target: the candidate must be preferred, at a rate above one half. guard: its rate must not be below one half by
    `margin`. report: it is measured, and decides nothing. A judge never decides alone: another suite gates as well."""
    margin: Share = 0.05
    """Of a guard: how far below one half the candidate's rate may lie. Of a target: the same, where
    `evaluation.improve` is any or cost."""
    items: PositiveInt | None = None
    """Judge so many of the items, drawn by `evaluation.seed`; null: all."""


AnySuite = Annotated[
    ArithmeticSuite
    | DeskSuite
    | JsonlSuite
    | Gsm8kSuite
    | Math500Suite
    | ProductionSuite
    | GoldenSuite
    | InspectSuite
    | LmEvalSuite
    | CustomSuite
    | JudgedSuite,
    Field(discriminator="kind"),
]
