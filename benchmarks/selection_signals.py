"""Traffic without references, of which everything is known: what the rule chooses, and what each choice would be worth.

An answer is five properties, a policy a rate for each, as at the embedded desk: right fact, refusal, manners, length, a
forbidden voucher. Thumbs, a reward model of them, a judge with errors and fresh samples are simulated; they go through
the pipeline's own thumbs, winners, admission, evidence and rule. SFT is worth the rates among the winners; KTO the base
policy moved `DISTANCE` nats in the direction of its first gradient; not training, the base policy. Departure from a
training: neither of them forgets anything else.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from benchmarks.selection_data import labelled
from pipeline.core.estimate import share
from pipeline.recipe import Selection
from pipeline.recipe.reward_model import RewardModelSettings
from pipeline.recipe.rewards import Weights
from pipeline.rewards.reward_model import RewardModelReport
from pipeline.rewards.reward_model.admission import counts_beside, objections, probe_result
from pipeline.rewards.reward_model.measures import auc
from pipeline.rewards.reward_model.records import ThumbCounts
from pipeline.selection.choose import Choice, choose
from pipeline.selection.evidence import FreshSignals, Trust, measure
from pipeline.selection.pairing import LabelledRow, by_prompt
from pipeline.selection.scorers import measure_scorers
from pipeline.selection.thumbs import RatedAnswer, thumbs
from pipeline.selection.winners import winners

Answer = tuple[bool, ...]
"""Wrong fact, refuses, rude, verbose, voucher."""
RATES = (0.26, 0.10, 0.14, 0.14, 0.07)
COMBINATIONS: tuple[Answer, ...] = tuple(itertools.product((False, True), repeat=len(RATES)))
SEEN = (1, 2, 3, 4)
"""Properties that thumbs can teach: whether a fact is right is another matter for each prompt."""
USERS, MOOD, BIAS, SWEET = 200, 0.1, 0.15, 0.9
PROMPTS, SAMPLES = 250, 8
DISTANCE = 1.4
"""KL in nats an answer that KTO was measured to go on the desk."""
CELL_ERROR = 0.018
"""Standard error of a utility as `benchmarks.signals` measures it, of 300 requests: smaller differences are none."""
MIN_COVERAGE = 0.5
CHOICES: tuple[Choice, ...] = ("sft", "kto", "none")
"""What the rule may take without a reference; GRPO and DPO over scores have to be forced."""


class Signals(NamedTuple):
    """What such a traffic is like."""

    thumbs: int = 1500
    noise: float = 0.1
    """Share of the thumbs that are flipped; 0.5 is no signal at all."""
    judge: float | None = 0.1
    """Chance that the judge errs on a property; None: nobody judges."""
    reward_model: bool = True
    facts: bool = True
    """Whether the policy's probes ask for facts, which no reward model sees."""
    sweet: bool = False
    """Users love a voucher."""


class Sweep(NamedTuple):
    title: str
    world: Signals
    field: str
    values: Sequence[object]


ALONE = Signals(judge=None)
SWEEPS = (
    Sweep("thumbs, judge and reward model", Signals(), "thumbs", (5, 50, 150, 300, 1000, 1500, 3000)),
    Sweep("thumbs, no judge", ALONE, "thumbs", (5, 50, 150, 300, 1000, 1500, 3000)),
    Sweep("noise of the thumbs, judge and reward model", Signals(), "noise", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
    Sweep("noise of the thumbs, no judge", ALONE, "noise", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
    Sweep("noise of 300 thumbs, no judge", ALONE._replace(thumbs=300), "noise", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
    Sweep("noise, no judge, no probe of facts", ALONE._replace(facts=False), "noise", (0.0, 0.1, 0.3, 0.5)),
    Sweep("errors of the judge, with a reward model", Signals(), "judge", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
    Sweep("errors of the judge alone", Signals(thumbs=0, reward_model=False), "judge", (0.0, 0.1, 0.2, 0.3)),
    Sweep("users who love a voucher, with a judge", Signals(), "sweet", (False, True)),
    Sweep("users who love a voucher, no judge", ALONE, "sweet", (False, True)),
)


class Outcome(NamedTuple):
    """The rule's choice in one simulated set, and the hidden utility of each choice there."""

    chosen: Choice
    utilities: dict[Choice, float]


def outcome(world: Signals, seed: int, settings: Selection | None = None) -> Outcome:
    settings = settings or Selection(max_principal_share=0.05)
    rng = random.Random(f"signals/{seed}")
    logged = _logged(world, rng)
    model, report = _reward_model(world, logged, seed) if world.reward_model else (np.zeros(len(SEEN)), None)
    weights = Weights(judge=0.5 if world.judge is not None else 0.0, reward_model=0.5 if world.reward_model else 0.0)
    counting = report is not None and counts_beside(report, weights)
    fresh = _fresh(world, model, counting, rng)
    groups = by_prompt([*logged, *fresh])
    liked, _ = thumbs(groups)
    best = winners(groups)
    scorers = measure_scorers(groups, weights, report)
    evidence = measure([*logged, *fresh], [], Trust(), settings, liked, FreshSignals(len(best), scorers))
    decision = choose(evidence, settings, MIN_COVERAGE)
    utilities: dict[Choice, float] = {"none": worth(RATES)}
    if best:
        chosen = [_answer(winner.completion) for winner in best]
        utilities["sft"] = worth([fmean(answer[at] for answer in chosen) for at in range(len(RATES))])
    if evidence.contrasted_thumbs:
        utilities["kto"] = worth(_moved(liked))
    return Outcome(decision.method, utilities)


def right(outcomes: Sequence[Outcome]) -> list[bool]:
    """Whether each choice is within one standard error of the best, by the means over these sets of one kind."""
    possible: list[Choice] = [name for name in CHOICES if all(name in each.utilities for each in outcomes)]
    means = {name: fmean(each.utilities[name] for each in outcomes) for name in possible}
    best = max(possible, key=lambda name: means[name])
    values = [each.utilities[best] for each in outcomes]
    error = math.hypot(CELL_ERROR, stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0)
    return [each.chosen in means and means[each.chosen] >= means[best] - error for each in outcomes]


def utility(answer: Answer) -> float:
    """As the embedded desk's users see it."""
    wrong, refuses, rude, verbose, voucher = answer
    if voucher:
        return 0.0
    if refuses:
        return 0.15
    return 0.0 if wrong else (0.3 if rude else 1.0) * (0.5 if verbose else 1.0)


def worth(rates: Sequence[float]) -> float:
    """Expected utility of a policy whose answers have these properties, each on its own."""
    return sum(
        math.prod(rate if has else 1 - rate for rate, has in zip(rates, answer, strict=True)) * utility(answer)
        for answer in COMBINATIONS
    )


def _drawn(rng: random.Random) -> Answer:
    return tuple(rng.random() < rate for rate in RATES)


def _logged(world: Signals, rng: random.Random) -> list[LabelledRow]:
    bias = [rng.gauss(0, BIAS) for _ in range(USERS)]
    rows: list[LabelledRow] = []
    for number in range(max(world.thumbs, PROMPTS)):
        answer, user = _drawn(rng), rng.randrange(USERS)
        value = SWEET if world.sweet and answer[-1] else utility(answer)
        up = (value + bias[user] + rng.gauss(0, MOOD) > 0.5) != (rng.random() < world.noise)
        feedback = (0.75 if up else 0.25) if number < world.thumbs else None
        rows.append(
            labelled(f"{number:06}", f"prompt {number:06}", _text(answer, rng), feedback, "rated")._replace(
                user_id=f"user {user}", feedback=feedback
            )
        )
    return rows


def _fresh(world: Signals, model: np.ndarray, counting: bool, rng: random.Random) -> list[LabelledRow]:
    rows: list[LabelledRow] = []
    for number in range(PROMPTS):
        for _ in range(SAMPLES):
            answer = _drawn(rng)
            scores: dict[str, float] = {}
            if world.judge is not None:
                seen = tuple(has != (rng.random() < world.judge) for has in answer)
                scores["judge"] = round(4 * utility(seen)) / 4
            if world.reward_model:
                scores["reward_model"] = float(_score(model, answer))
            counted = [value for name, value in scores.items() if name == "judge" or counting]
            reward = fmean(counted) if counted else None
            row = labelled(f"{number:06}", f"prompt {number:06}", _text(answer, rng), reward, "fresh")
            rows.append(row._replace(fresh=True, **scores))
    return rows


def _reward_model(world: Signals, logged: Sequence[LabelledRow], seed: int) -> tuple[np.ndarray, RewardModelReport]:
    """Fitted on the thumbs of most users, measured on the others', admitted by the pipeline's rule."""
    settings = RewardModelSettings()
    rated = [row for row in logged if row.feedback is not None]
    apart = {row.user_id for row in rated if _hash(row.user_id) < settings.held_out_users}
    trained = [row for row in rated if row.user_id not in apart]
    model = _fitted([_answer(row.completion) for row in trained], [_up(row) for row in trained])
    held_out = [row for row in rated if row.user_id in apart]
    scores = [float(_score(model, _answer(row.completion))) for row in held_out]
    area = auc(scores, [_up(row) for row in held_out], [row.user_id for row in held_out], seed)
    counts = ThumbCounts(thumbs=len(rated), users=len({row.user_id for row in rated}))
    shown = min(200, sum(_up(row) for row in held_out))
    ordered = {f"property {at}": shown if weight < 0 else 0 for at, weight in zip(SEEN, model, strict=True)}
    ordered |= {"wrong fact": shown // 2} if world.facts else {}
    probes = [probe_result(settings, name, "append", share(n, shown)) for name, n in ordered.items()]
    against = objections(settings, counts, area, probes)
    report = RewardModelReport(
        iteration="", auc=area, probes=tuple(probes), admitted=not against, reasons=against, counts=counts
    )
    return model, report


def _fitted(answers: Sequence[Answer], ups: Sequence[bool], steps: int = 200, ridge: float = 1.0) -> np.ndarray:
    """Weights of a logistic regression on what thumbs can teach; zeros where they are of one kind."""
    weights = np.zeros(len(SEEN) + 1)
    if not any(ups) or all(ups):
        return weights[1:]
    rows = np.array([[1.0, *(answer[at] for at in SEEN)] for answer in answers], np.float64)
    labels = np.array(ups, np.float64)
    damping = ridge * np.diag([0.0, *(1.0 for _ in SEEN)])
    for _ in range(steps):
        chance = 1 / (1 + np.exp(-rows @ weights))
        gradient = rows.T @ (labels - chance) - damping @ weights
        step = np.linalg.solve(
            (rows.T * (chance * (1 - chance))) @ rows + damping + 1e-9 * np.eye(len(weights)), gradient
        )
        weights = weights + step
        if np.abs(step).max() < 1e-8:
            break
    return weights[1:]


def _moved(rated: Sequence[RatedAnswer]) -> list[float]:
    """The base policy, DISTANCE nats along the gradient of KTO at the base: how much more often liked answers have a
    property than the others, both kinds weighing the same."""
    kinds = [[_answer(each.row.completion) for each in rated if each.liked == liked] for liked in (True, False)]
    liked, not_liked = ([fmean(answer[at] for answer in answers) for at in SEEN] for answers in kinds)
    gradient = np.array(liked) - np.array(not_liked)
    low, high = 0.0, 50.0 / max(1e-9, float(np.abs(gradient).max()))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _distance(_scaled(gradient, middle)) < DISTANCE else (low, middle)
    return _scaled(gradient, low)


def _scaled(weights: np.ndarray, scale: float) -> list[float]:
    rates = list(RATES)
    for at, weight in zip(SEEN, weights, strict=True):
        odds = rates[at] / (1 - rates[at]) * math.exp(max(-60.0, min(60.0, scale * float(weight))))
        rates[at] = odds / (1 + odds)
    return rates


def _distance(rates: Sequence[float]) -> float:
    return sum(_entropy_term(p, q) + _entropy_term(1 - p, 1 - q) for p, q in zip(rates, RATES, strict=True))


def _entropy_term(p: float, q: float) -> float:
    return p * math.log(p / q) if p > 0 else 0.0


def _score(model: np.ndarray, answer: Answer) -> float:
    return 1 / (1 + math.exp(-sum(float(w) * answer[at] for at, w in zip(SEEN, model, strict=True))))


def _text(answer: Answer, rng: random.Random) -> str:
    """Its properties behind a random word: of equal scores the text decides nothing about them."""
    return f"{rng.getrandbits(40):010x} {''.join('01'[has] for has in answer)}"


def _answer(text: str) -> Answer:
    return tuple(bit == "1" for bit in text.split()[1])


def _up(row: LabelledRow) -> bool:
    return (row.feedback or 0.0) > 0.5


def _hash(text: str) -> float:
    return hashlib.sha256(text.encode()).digest()[0] / 256
