"""How often a judge prefers the candidate's answer, and would at equal lengths (docs/evaluation.md): AlpacaEval 2 by
its length term alone (arXiv 2404.04475). Where the two orders disagree it is a tie (arXiv 2306.05685)."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from evals import statistics
from evals.comparison import MIN_CLUSTERS, MIN_ITEMS
from evals.comparison import problems as comparison_problems
from evals.records import Difference, EvalArm, Guard, JudgedMeasurement, Trial, WinRate
from evals.statistics import BOOTSTRAP_DRAWS, LEVEL, Array
from evals.suites import Suite
from evals.suites.lines import drawn
from pipeline.core.storage import Record
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import JudgedSuite

MAX_DISAGREEMENT = 0.4
"""Share of the judged pairs whose winner depends on which answer is read first: above it the judge says too little."""
MIN_LENGTH_DIFFERENCES = 20
"""With fewer distinct ones, the effect of length cannot be told from that of the answers."""
MAX_UNJUDGED_SHARE = 0.01
"""Of the pairs: each counts as lost, and above it too much of the rate is not the judge's."""
PRIOR_PAIRS = 0.001
"""Of a pair that is half won: a fit without a finite optimum stays finite."""
_STEPS, _CONVERGED = 200, 1e-10


class JudgedPair(Record):
    """Two answers to one item, and the judge's preference in both orders: 1 the candidate's, 0 the champion's, 0.5
    neither. Both are None for two equal texts, which are a tie without asking, and where `reason` says why the judge
    did not answer: that counts as lost, so that no candidate gains by what a judge cannot read.

    Lengths are of the answers, in one unit for all pairs: tokens or characters.
    """

    item: str
    cluster: str
    candidate_first: float | None
    champion_first: float | None
    champion_length: int
    candidate_length: int
    reason: str = ""

    @property
    def agrees(self) -> bool:
        return self.candidate_first == self.champion_first

    @property
    def outcome(self) -> float:
        """Of the candidate: 1 won, 0 lost, 0.5 a tie or a disagreement of the two orders."""
        if self.reason:
            return 0.0
        return 0.5 if self.candidate_first is None or not self.agrees else self.candidate_first


def problems(pairs: Sequence[JudgedPair]) -> list[str]:
    """Why no verdict can rest on these pairs; empty when one can."""
    if not pairs:
        return ["no pair was judged: give the suite items that both models answer"]
    reasons: list[str] = []
    if repeated := [item for item, times in Counter(each.item for each in pairs).items() if times > 1]:
        reasons.append(f"{len(repeated)} items are judged twice, such as {min(repeated)}: judge each once")
    orders = [order for each in pairs for order in (each.candidate_first, each.champion_first)]
    if any(order not in (0.0, 0.5, 1.0, None) for order in orders) or any(
        (each.candidate_first is None) != (each.champion_first is None) for each in pairs
    ):
        reasons.append("a pair has an outcome that is neither 0, 0.5 nor 1 in both orders: judge it again")
    unjudged = Counter(each.reason for each in pairs if each.reason)
    if unjudged.total() > MAX_UNJUDGED_SHARE * len(pairs):
        named = ", ".join(f"{reason} {times}" for reason, times in unjudged.most_common())
        reasons.append(
            f"{unjudged.total()} of {len(pairs)} pairs have no judgement (at most {MAX_UNJUDGED_SHARE:.0%}): {named}: "
            "look at the judge's endpoint, its budget and its limits in rewards.judge"
        )
    if (share := disagreement(pairs)) > MAX_DISAGREEMENT:
        reasons.append(
            f"the judge prefers another answer of {share:.0%} of the pairs when their order is swapped (at most "
            f"{MAX_DISAGREEMENT:.0%}): take another judge, or a clearer question to it"
        )
    if (distinct := _length_differences(pairs)) < MIN_LENGTH_DIFFERENCES:
        reasons.append(
            f"the lengths of the answers differ by {distinct} distinct numbers (at least {MIN_LENGTH_DIFFERENCES}), so "
            "the judge's liking for length cannot be taken out: judge more items"
        )
    return reasons


def disagreement(pairs: Sequence[JudgedPair]) -> float:
    """Share of the pairs that were asked whose two orders disagree; 0 where none was."""
    asked = [each for each in pairs if each.candidate_first is not None]
    return sum(not each.agrees for each in asked) / len(asked) if asked else 0.0


def win_rate(pairs: Sequence[JudgedPair], alpha: float, seed: int, draws: int = BOOTSTRAP_DRAWS) -> WinRate:
    """Both rates with their intervals: cluster t on the logit (its error linearised) and the cluster bootstrap of the
    whole fit, in which also sd(d) is drawn anew. One-sided bounds are at 1 - alpha.

    The pairs are of at least two clusters, and `problems` has nothing against them; their order changes nothing.
    """
    ordered = sorted(pairs, key=lambda each: each.item)
    outcomes = np.array([each.outcome for each in ordered])
    lengths = np.array([float(each.candidate_length - each.champion_length) for each in ordered])
    names, cluster = np.unique([each.cluster for each in ordered], return_inverse=True)
    rate, total, clusters = float(outcomes.mean()), len(ordered), len(names)
    theta, phi = (float(each[0]) for each in fit(outcomes, lengths, np.ones((1, total))))
    if len(set(outcomes.tolist())) == 1:
        raw = controlled = _alike(rate, clusters, alpha)
    else:
        drawn = [times[:, cluster] for times in statistics.resamples(clusters, draws, seed)]
        rates = np.concatenate([weights @ outcomes / weights.sum(axis=1) for weights in drawn])
        thetas = np.concatenate([fit(outcomes, lengths, weights)[0] for weights in drawn])
        reach = {tail: -statistics.t_quantile(tail, clusters - 1) for tail in (alpha, (1 - LEVEL) / 2)}
        sizes = np.bincount(cluster).astype(np.float64)
        won = np.bincount(cluster, outcomes).astype(np.float64)
        error = float(statistics.mean_and_standard_error(won, sizes)[1])
        ends = {t: (rate - z * error, rate + z * error) for t, z in reach.items()}
        raw = _difference(rate, error, ends, rates, alpha)
        influence = np.bincount(cluster, _influence(outcomes, lengths, theta, phi))
        spread = math.sqrt(float((influence**2).sum()) * clusters / (clusters - 1))
        ends = {t: (_rate(theta - z * spread), _rate(theta + z * spread)) for t, z in reach.items()}
        at_zero = _rate(theta)
        controlled = _difference(at_zero, spread * at_zero * (1 - at_zero), ends, _rates(thetas), alpha)
    return WinRate(
        pairs=total,
        clusters=clusters,
        raw=raw,
        controlled=controlled,
        length_effect=phi,
        disagreement=disagreement(ordered),
        length_differences=_length_differences(ordered),
    )


def tanh_lengths(lengths: Array, weights: Array) -> Array:
    """tanh(d / sd(d)) of (N,) differences of length under (B, N) weights, as (B, N); 0 where all are alike."""
    total = weights.sum(axis=1, keepdims=True)
    mean = weights @ lengths[:, None] / total
    variance = (weights @ (lengths**2)[:, None] / total - mean**2) * total / np.maximum(total - 1, 1)
    deviation = np.sqrt(np.maximum(variance, 0))
    return np.tanh(np.where(deviation > 0, lengths / np.where(deviation > 0, deviation, 1), 0))


def fit(outcomes: Array, lengths: Array, weights: Array) -> tuple[Array, Array]:
    """theta and phi, (B,) each, of (N,) outcomes between 0 and 1 under each of (B, N) weights.

    Newton's method, all fits at once; no step is longer than the way from 0 plus 1, because a full one can overshoot.
    The prior makes the optimum finite and unique.
    """
    x = tanh_lengths(lengths, weights)
    theta, phi = np.zeros(len(weights)), np.zeros(len(weights))
    open_ = np.arange(len(weights))
    for _ in range(_STEPS):
        w, z = weights[open_], x[open_]
        p = _rates(theta[open_, None] + phi[open_, None] * z)
        residual, information = w * (outcomes - p), w * p * (1 - p)
        at_zero, alone = (_rates(each[open_]) for each in (theta, phi))
        gradient = (
            residual.sum(axis=1) + PRIOR_PAIRS * (0.5 - at_zero),
            (residual * z).sum(axis=1) + PRIOR_PAIRS * (0.5 - alone),
        )
        information_z = information * z
        a = information.sum(axis=1) + PRIOR_PAIRS * at_zero * (1 - at_zero)
        b = information_z.sum(axis=1)
        c = (information_z * z).sum(axis=1) + PRIOR_PAIRS * alone * (1 - alone)
        determinant = a * c - b * b
        step = (c * gradient[0] - b * gradient[1]) / determinant, (a * gradient[1] - b * gradient[0]) / determinant
        longest = 1 + np.hypot(theta[open_], phi[open_])
        shrink = np.minimum(1.0, longest / np.maximum(np.hypot(*step), longest))
        theta[open_] += shrink * step[0]
        phi[open_] += shrink * step[1]
        open_ = open_[np.hypot(*step) > _CONVERGED]
        if not len(open_):
            break
    return theta, phi


def _influence(outcomes: Array, lengths: Array, theta: float, phi: float) -> Array:
    """What each pair moves theta by: the inverse information times its score."""
    x = tanh_lengths(lengths, np.ones((1, len(lengths))))[0]
    p = _rates(theta + phi * x)
    v, at_zero, alone = p * (1 - p), _rate(theta), _rate(phi)
    a = float(v.sum()) + PRIOR_PAIRS * at_zero * (1 - at_zero)
    b = float((v * x).sum())
    c = float((v * x * x).sum()) + PRIOR_PAIRS * alone * (1 - alone)
    return (outcomes - p) * (c - b * x) / (a * c - b * b)


def _difference(
    value: float, error: float, ends: dict[float, tuple[float, float]], drawn: Array, alpha: float
) -> Difference:
    """`ends`: of the rate, by the tail that each leaves out; all less one half."""
    (lower, upper), (low, high) = ends[alpha], ends[(1 - LEVEL) / 2]
    return Difference(
        value=value - 0.5,
        standard_error=error,
        low=low - 0.5,
        high=high - 0.5,
        lower=lower - 0.5,
        upper=upper - 0.5,
        bootstrap_lower=float(np.quantile(drawn, alpha)) - 0.5,
        bootstrap_upper=float(np.quantile(drawn, 1 - alpha)) - 0.5,
    )


def _alike(rate: float, clusters: int, alpha: float) -> Difference:
    """Where all outcomes are alike: fewer clusters than the exact zero-event bound says are different."""
    (one, two) = (statistics.zero_event_bound(clusters, tail) for tail in (alpha, (1 - LEVEL) / 2))
    value = rate - 0.5
    lower, upper = value - one * rate, value + one * (1 - rate)
    return Difference(
        value=value,
        standard_error=0.0,
        low=value - two * rate,
        high=value + two * (1 - rate),
        lower=lower,
        upper=upper,
        bootstrap_lower=lower,
        bootstrap_upper=upper,
    )


def _rates(logits: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(logits))


def _rate(logit: float) -> float:
    return float(_rates(np.array(logit)))


def _length_differences(pairs: Sequence[JudgedPair]) -> int:
    return len({each.candidate_length - each.champion_length for each in pairs})


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
    evidence: JudgedEvidence, suite: Suite, arms: tuple[EvalArm, EvalArm], section: Evaluation, trial: Trial
) -> JudgedMeasurement:
    """The win rates over the answers of `arms`, champion first, to `suite`; or why these judgements show nothing."""
    settings = section.judged_suite(evidence.suite)
    problems = (
        list(evidence.problems)
        or pairing_problems(suite, arms, section, trial.seed)
        or _problems(evidence.pairs, suite, settings, section)
    )
    rate = loss = None
    if not problems:
        alpha = trial.level if settings.role == "target" else section.alpha
        rate = win_rate(evidence.pairs, alpha, section.seed)
        loss = _loss(rate, settings) if settings.role == "guard" else None
    name = evidence.judge.model if evidence.judge else ""
    return JudgedMeasurement(suite=settings.name, judge=name, problems=tuple(problems), win_rate=rate, loss=loss)


def pairing_problems(suite: Suite, arms: tuple[EvalArm, EvalArm], section: Evaluation, seed: int) -> list[str]:
    """Why the answers of these runs cannot be compared, however they were graded."""
    reasons = comparison_problems(suite, arms, section, seed, graded=False)
    return [f"its answers are those to {suite.name}: {why}" for why in reasons]


def _problems(pairs: tuple[JudgedPair, ...], suite: Suite, settings: JudgedSuite, section: Evaluation) -> list[str]:
    items = {item.id: item.cluster for item in drawn(suite.items, settings.items, section.seed)}
    reasons = problems(pairs)
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
