"""The evidence of a judged suite: who judged, what was preferred of each pair, and the numbers that this gives."""

from evals import win_rate
from evals.comparable import MIN_CLUSTERS, MIN_ITEMS
from evals.comparable import problems as comparison_problems
from evals.measurements import Difference, Guard, JudgedMeasurement, WinRate
from evals.results import EvalArm
from evals.suites import Suite
from evals.suites.lines import drawn
from evals.win_rate import JudgedPair
from pipeline.core.storage import Record
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import JudgedSuite


class JudgeIdentity(Record):
    """Who judged: the model's name and the digest of its weights, and `id`, which stands for rubric and prompt too."""

    model: str
    digest: str
    id: str


class JudgedEvidence(Record):
    """`judge` is None where the recipe names nobody. `problems` are why the suite was not, or not wholly, judged."""

    suite: str
    judge: JudgeIdentity | None
    problems: tuple[str, ...] = ()
    pairs: tuple[JudgedPair, ...] = ()


def measure(
    evidence: JudgedEvidence, suite: Suite, arms: tuple[EvalArm, EvalArm], section: Evaluation
) -> JudgedMeasurement:
    """The win rates over the answers of `arms`, champion first, to `suite`; or why these judgements show nothing."""
    settings = section.judged_suite(evidence.suite)
    problems = (
        list(evidence.problems)
        or pairing_problems(suite, arms, section)
        or _problems(evidence.pairs, suite, settings, section)
    )
    rate = loss = None
    if not problems:
        alpha = section.target_alpha() if section.improves(settings.role) else section.alpha
        rate = win_rate.win_rate(evidence.pairs, alpha, section.seed)
        if settings.role == "guard" or (settings.role == "target" and section.improve != "all"):
            same = alpha == section.alpha
            loss = _loss(rate if same else win_rate.win_rate(evidence.pairs, section.alpha, section.seed), settings)
    name = evidence.judge.model if evidence.judge else ""
    return JudgedMeasurement(suite=settings.name, judge=name, problems=tuple(problems), win_rate=rate, loss=loss)


def pairing_problems(suite: Suite, arms: tuple[EvalArm, EvalArm], section: Evaluation) -> list[str]:
    """Why the answers of these runs cannot be compared, however they were graded."""
    reasons = comparison_problems(suite, arms, section, section.suite(suite.name), graded=False)
    return [f"its answers are those to {suite.name}: {why}" for why in reasons]


def _problems(pairs: tuple[JudgedPair, ...], suite: Suite, settings: JudgedSuite, section: Evaluation) -> list[str]:
    items = {item.id: item.cluster for item in drawn(suite.items, settings.items, section.seed)}
    reasons = win_rate.problems(pairs)
    if {each.item: each.cluster for each in pairs} != items:
        reasons.append("the pairs are not those that the recipe asks for: judge again")
    clusters = len({each.cluster for each in pairs})
    if len(pairs) < MIN_ITEMS or clusters < MIN_CLUSTERS:
        reasons.append(
            f"{len(pairs)} pairs in {clusters} clusters are too few (at least {MIN_ITEMS} in {MIN_CLUSTERS})"
        )
    return reasons


def _loss(rate: WinRate, settings: JudgedSuite) -> Guard:
    """The win rate as a guard: the harm is its distance below one half."""
    gain = rate.controlled
    return Guard(
        name="losses to the champion",
        rule="safe",
        champion=0.5,
        candidate=0.5 - gain.value,
        margin=settings.margin,
        difference=Difference(
            value=-gain.value,
            standard_error=gain.standard_error,
            low=-gain.high,
            high=-gain.low,
            lower=-gain.upper,
            upper=-gain.lower,
            bootstrap_lower=-gain.bootstrap_upper,
            bootstrap_upper=-gain.bootstrap_lower,
        ),
    )
