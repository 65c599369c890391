"""What was measured of a candidate against its champion, as records: values with their uncertainty."""

from typing import Literal

from pipeline.core.locations import Uri
from pipeline.core.storage import ModelRef, Record, digest_json
from pipeline.recipe import Evaluation


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
    """One kind of item, for the reader. `p_holm` is two-sided and adjusted for the number of slices."""

    name: str
    items: int
    champion: float
    candidate: float
    difference: ConfidenceInterval
    p_holm: float


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


class SuiteMeasurement(Record):
    """A comparison over one suite, or the reasons for which these outcomes cannot be compared."""

    suite: str
    problems: tuple[str, ...]
    comparison: Comparison | None


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
    judged: tuple[JudgedMeasurement, ...] = ()
    """Of the suites that are judged, in the recipe's order."""

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
