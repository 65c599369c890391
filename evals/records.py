"""The records of an evaluation: its plan, what a model answered, and what was measured of a candidate against its
champion."""

from typing import Literal, NamedTuple

from pydantic import Field

from pipeline.core.iteration import Iteration
from pipeline.core.locations import Uri
from pipeline.core.storage import CheckpointRef, ModelRef, Record, digest_json
from pipeline.recipe import Evaluation
from pipeline.recipe.rewards import Judge, Verifier
from pipeline.recipe.section import Operational, settings
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import AnswerProtocol


class EvalPlan(Record):
    """One evaluation of one candidate against the champion of its iteration."""

    iteration: Iteration
    section: Evaluation
    verifier: Verifier
    candidate: CheckpointRef
    judge: Judge | None = None
    """Of the suites that are judged; None where the recipe names none."""
    lineage: tuple[str, ...] = ()
    """Digests of what the champion came from: with both models', none of them may judge."""

    def path(self, *parts: str) -> str:
        """Name of something that the evaluation publishes, relative to the store's root."""
        return self.iteration.path(*parts)

    def digest(self) -> str:
        """sha256 of what decides the evidence: not where the models lie, nor how fast they are asked."""
        judge = settings(self.judge, Operational) if self.judge is not None else None
        asked = settings(self.section, Operational), settings(self.verifier, Operational), judge
        candidate = self.candidate.model.digest, self.candidate.adapter.digest
        return digest_json([self.iteration.id, self.iteration.champion.digest, *candidate, *asked])

    def models(self) -> frozenset[str]:
        """Digests of both models and of what they came from."""
        candidate = self.candidate.model.digest, self.candidate.adapter.digest
        return frozenset({*self.lineage, self.iteration.champion.digest, *candidate})


class Trial(Record):
    """What the ledger gives a gate: the one-sided level of its improvement tests, and the seed that the answers of both
    arms are drawn by. Each gate has another seed: a champion was lucky in the answers that it was promoted for."""

    level: float
    seed: int


NOT_ENTERED = Trial(level=0.0, seed=0)
"""Of a gate that may not be asked."""


class Protocol(Record):
    """Everything but the weights that decides an outcome. Runs are comparable when their digests are equal."""

    suite: str
    suite_digest: str
    samples: int
    verifier: str
    answers: AnswerProtocol

    def digest(self) -> str:
        return digest_json(self)


class EvalSample(Record):
    """One graded completion. `finished` is False when it was cut at the token limit."""

    text: str
    tokens: int
    finished: bool
    outcome: Outcome
    answer: str
    defects: tuple[str, ...] = ()
    """What is wrong with the text itself: refusal, pii (`runner.defects`)."""


class ItemCounts(NamedTuple):
    """One item's samples as whole numbers: all that a verdict rests on."""

    samples: int
    right: int
    ungraded: int
    """Samples without a verdict; `unreadable` of them for their reference."""
    unreadable: int
    no_answer: int
    truncated: int
    refusal: int
    pii: int
    tokens: int
    prompt_tokens: int


class ItemResult(Record):
    """All samples of one item, in the order of their seeds."""

    id: str
    samples: tuple[EvalSample, ...]
    prompt_tokens: int = 0

    def counts(self) -> ItemCounts:
        return ItemCounts(
            samples=len(self.samples),
            right=sum(sample.outcome.score == 1 for sample in self.samples),
            ungraded=sum(sample.outcome.score is None for sample in self.samples),
            unreadable=sum(sample.outcome is Outcome.unparsable_gold for sample in self.samples),
            no_answer=sum(sample.outcome is Outcome.no_answer for sample in self.samples),
            truncated=sum(not sample.finished for sample in self.samples),
            refusal=sum("refusal" in sample.defects for sample in self.samples),
            pii=sum("pii" in sample.defects for sample in self.samples),
            tokens=sum(sample.tokens for sample in self.samples),
            prompt_tokens=self.prompt_tokens,
        )


class EvalArm(Record):
    """One model's run over one suite."""

    model: ModelRef
    protocol: Protocol
    results: tuple[ItemResult, ...] = ()


class ConfidenceInterval(Record):
    """A value between -1 and 1 with its two-sided 95% interval."""

    value: float
    low: float
    high: float


class Difference(Record):
    """A paired difference, candidate minus champion: 95% interval, and one-sided bounds at the level of its test."""

    value: float
    standard_error: float
    low: float
    high: float
    lower: float
    upper: float
    bootstrap_lower: float
    bootstrap_upper: float


class Guard(Record):
    """A harm that a candidate may not add: `difference` is its increase, which must be shown to lie below `margin`.

    With `rule` harm the increase is too rare to be shown small: the guard fails where it is shown to be larger. The
    values are shares of answers, or losses of score; of `length` they are mean tokens, and the difference that of their
    logarithms.
    """

    name: str
    rule: Literal["safe", "harm"]
    champion: float
    candidate: float
    margin: float
    difference: Difference


class Slice(Record):
    """One kind of item, for the reader."""

    name: str
    items: int
    champion: ConfidenceInterval
    candidate: ConfidenceInterval
    difference: ConfidenceInterval


class AnswerCosts(Record):
    """Mean USD of an answer, of both models."""

    champion: float
    candidate: float


class PassAt(Record):
    """The chance that one of k answers is right, for the reader (the unbiased estimate of arXiv 2107.03374)."""

    k: int
    champion: float
    candidate: float


class Comparison(Record):
    """`mcnemar_p` is one-sided, and None unless every cluster is one sample. `ungraded` counts samples."""

    items: int
    clusters: int
    samples_per_item: int
    champion: ConfidenceInterval
    candidate: ConfidenceInterval
    difference: Difference
    mcnemar_p: float | None
    guards: tuple[Guard, ...]
    slices: tuple[Slice, ...]
    pass_at: tuple[PassAt, ...]
    ungraded_champion: int
    ungraded_candidate: int
    cost: AnswerCosts | None
    """None where the recipe has no prices."""


class SliceScore(Record):
    """One model's share of right answers to one kind of item."""

    name: str
    items: int
    accuracy: ConfidenceInterval


class SuiteScore(Record):
    """One model alone over one suite. Shares are of all answers; an answer without a grade is not right. `pass_at` is
    by k, and `tokens` the mean of an answer."""

    suite: str
    items: int
    clusters: int
    samples_per_item: int
    accuracy: ConfidenceInterval
    no_answer: float
    truncated: float
    ungraded: float
    tokens: float
    pass_at: dict[int, float]
    slices: tuple[SliceScore, ...]


class ModelScores(Record):
    """One model alone over the suites that it was asked."""

    model: ModelRef
    scores: tuple[SuiteScore, ...]


class SuiteMeasurement(Record):
    """A comparison over one suite, or the reasons for which these outcomes cannot be compared."""

    suite: str
    problems: tuple[str, ...]
    comparison: Comparison | None


class ComparedModels(Record):
    """Two models over the suites that they were asked."""

    champion: ModelRef
    candidate: ModelRef
    measurements: tuple[SuiteMeasurement, ...]


class WinRate(Record):
    """The candidate's win rates, each less one half: above 0 the candidate is preferred.

    `raw` is as judged, `controlled` at equal lengths, which is the one to decide by. `length_effect` is phi.
    """

    pairs: int
    clusters: int
    raw: Difference
    controlled: Difference
    length_effect: float
    disagreement: float
    """Share of the pairs that were asked whose two orders disagree."""
    length_differences: int
    """Distinct ones."""


class JudgedMeasurement(Record):
    """How often a judge prefers the candidate's answers, or the reasons for which these judgements show nothing.

    The bounds of `win_rate` are at the level of the suite's test. `loss` is set where the rate guards: how far it lies
    below one half, at equal lengths. `judge` is the model's name, "" where the recipe has none.
    """

    suite: str
    judge: str
    problems: tuple[str, ...] = ()
    win_rate: WinRate | None = None
    loss: Guard | None = None


class BundleRef(Record):
    uri: Uri
    digest: str


class EvalReport(Record):
    """What the evaluation of one candidate measured; the gate reads this and nothing else.

    `problems` are of the evidence as a whole, `measurements` follow the recipe's suites, `protocol` is a digest.
    """

    iteration: str
    champion: ModelRef
    candidate: ModelRef
    protocol: str
    section: Evaluation
    problems: tuple[str, ...]
    measurements: tuple[SuiteMeasurement, ...]
    bundle: BundleRef
    trial: Trial = NOT_ENTERED
    unchanged: int = 0
    """Answers of the candidate, where each of them equals the champion's; else 0."""
    judged: tuple[JudgedMeasurement, ...] = ()
    """Of the suites that are judged, in the recipe's order."""
    not_asked: dict[str, str] = Field(default={})
    """Suites that only report and had no item for this iteration, with the reasons."""

    def digest(self) -> str:
        """sha256 of the report, wherever its bundle and the models lie."""
        places = {name: {"uri"} for name in ("bundle", "champion", "candidate")}
        return digest_json(self.model_dump(mode="json", exclude=places))

    def target(self) -> SuiteMeasurement:
        """The first target whose answers are checked, else the first guard: what one line has room for."""
        roles = {name: [each.name for each in self.section.asked if each.role == name] for name in ("target", "guard")}
        name = (roles["target"] or roles["guard"])[0]
        missing = SuiteMeasurement(suite=name, problems=self.problems, comparison=None)
        return next((each for each in self.measurements if each.suite == name), missing)
