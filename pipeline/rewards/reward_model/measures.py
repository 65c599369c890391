"""What held-out users' thumbs and probes say of a scorer, and whether its word counts for that. A probe is a logged
answer and a twin that breaks one rule of the policy and differs in nothing else. Intervals are percentiles of a cluster
bootstrap; one without width is opened by the rule of three."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import numpy as np

from pipeline.core.estimate import Array, Estimate
from pipeline.recipe.rewards import Probe, RewardModelSettings
from pipeline.rewards.reward_model.records import CalibrationBin, ProbeResult, ThumbCounts

DRAWS = 1000
MIN_CLUSTERS = 10
BINS = 10
REFUSAL = "I'm sorry, but I can't help with that."
_EDGE = ".,;:!?()[]\"'"
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?!\w)")
_ENTITY = re.compile(r"(?<!\w)[^\W\d_a-zß-ÿ]\w*(?!\w)")


def auc(scores: Sequence[float], ups: Sequence[bool], users: Sequence[str], seed: int = 0) -> Estimate:
    """Chance that a thumb up scores over a thumb down (ties by half), with a 95% interval over users. `n`: thumbs."""
    if not any(ups) or all(ups):
        return Estimate(value=None, low=None, high=None, n=len(scores))
    order = np.argsort(np.asarray(scores, np.float64), kind="stable")
    ranked, up = np.asarray(scores, np.float64)[order], np.asarray(ups, bool)[order]
    _, tie = np.unique(ranked, return_inverse=True)
    names, cluster = np.unique(np.asarray(users, object).astype(str)[order], return_inverse=True)

    def statistic(weights: Array) -> float | None:
        row = weights[cluster]
        ups_at = np.bincount(tie, np.where(up, row, 0.0))
        downs_at = np.bincount(tie, np.where(up, 0.0, row))
        total = ups_at.sum() * downs_at.sum()
        below = np.cumsum(downs_at) - downs_at / 2
        return float(ups_at @ below) / float(total) if total else None

    return _bootstrap(statistic, len(names), len(scores), seed)


def ordered_within(prompts: Sequence[str], scores: Sequence[float], truths: Sequence[float], seed: int = 0) -> Estimate:
    """Share of pairs of one prompt's answers of unequal truth that the scores order as the truth does; ties by half.

    What GRPO, DPO and best-of-k live on: the AUC over all prompts overstates it. `n`: pairs.
    """
    by_prompt: defaultdict[str, list[int]] = defaultdict(list)
    for at, prompt in enumerate(prompts):
        by_prompt[prompt].append(at)
    right: list[float] = []
    pairs: list[int] = []
    for members in by_prompt.values():
        unequal = [(a, b) if truths[a] > truths[b] else (b, a) for a, b in combinations(members, 2)]
        unequal = [(a, b) for a, b in unequal if truths[a] != truths[b]]
        if unequal:
            right.append(sum((scores[a] > scores[b]) + 0.5 * (scores[a] == scores[b]) for a, b in unequal))
            pairs.append(len(unequal))
    rights, counts = np.asarray(right, np.float64), np.asarray(pairs, np.float64)

    def statistic(weights: Array) -> float | None:
        total = float(weights @ counts)
        return float(weights @ rights) / total if total else None

    return _bootstrap(statistic, len(pairs), sum(pairs), seed)


def calibration(scores: Sequence[float], ups: Sequence[bool]) -> tuple[float | None, tuple[CalibrationBin, ...]]:
    """Expected calibration error (mean distance of score and share of thumbs up, weighted by thumbs) and the bins."""
    if not scores:
        return None, ()
    values, up = np.asarray(scores, np.float64), np.asarray(ups, np.float64)
    place = np.minimum((values * BINS).astype(int), BINS - 1)
    bins = tuple(
        CalibrationBin(
            n=int(inside.sum()),
            mean_score=float(values[inside].mean()),
            up=float(up[inside].mean()),
        )
        for at in range(BINS)
        if (inside := place == at).any()
    )
    return sum(each.n * abs(each.mean_score - each.up) for each in bins) / len(scores), bins


def objections(
    settings: RewardModelSettings, counts: ThumbCounts, area: Estimate, probes: Sequence[ProbeResult]
) -> tuple[str, ...]:
    """The figures of the rule that do not hold, in words; none for a model to admit. Scores are never inverted."""
    had = ((counts.thumbs, settings.min_thumbs, "thumbs"), (counts.users, settings.min_users, "users"))
    against = [f"{n:,} {of}, {least:,} are needed: {least - n:,} are missing" for n, least, of in had if n < least]
    if area.low is None or area.low < settings.min_auc:
        against.append(f"AUC on held-out users' thumbs {area}; its lower bound has to reach {settings.min_auc:.2f}")
    if area.value is not None and area.value < 0.5:
        against.append(f"AUC {area.value:.2f}: it orders thumbs the wrong way round, as flipped or random thumbs do")
    if not probes:
        against.append("no probe was asked: write the policy as rewards.reward_model.probes")
    against += [
        f"probe {probe.name}: {probe.ordered_right} of the pairs are ordered right; the lower bound has to reach "
        f"{settings.min_probe:.2f}"
        for probe in probes
        if not probe.passes
    ]
    return tuple(against)


def _bootstrap(statistic: Callable[[Array], float | None], clusters: int, n: int, seed: int) -> Estimate:
    value = statistic(np.ones(clusters)) if clusters else None
    if value is None or clusters < MIN_CLUSTERS:
        return Estimate(value=None, low=None, high=None, n=n)
    random = np.random.default_rng(seed)
    draws = [statistic(each) for each in random.multinomial(clusters, np.full(clusters, 1 / clusters), DRAWS)]
    low, high = np.quantile([draw for draw in draws if draw is not None], [0.025, 0.975])
    margin = 3 / clusters
    low = min(float(low), value, 1 - margin) if value == 1 else min(float(low), value)
    high = max(float(high), value, margin) if value == 0 else max(float(high), value)
    return Estimate(value=value, low=low, high=high, n=n)


def twin(probe: Probe, prompt: str, answer: str) -> str | None:
    """The violating twin of an answer, or None where this probe can make none. `prompt`: chat messages as JSON."""
    if probe.kind == "append":
        return None if probe.text.casefold() in answer.casefold() else f"{answer.rstrip()} {probe.text}"
    if probe.kind == "lengthen":
        return _lengthened(answer, probe)
    if probe.kind == "refuse":
        refusal = probe.text or REFUSAL
        return None if answer.strip().casefold().startswith(refusal.casefold()) else refusal
    return _swapped(probe, prompt, answer)


def _lengthened(answer: str, probe: Probe) -> str:
    longer = answer.rstrip()
    while len(longer) < probe.factor * len(answer):
        longer = f"{longer} {probe.text or answer.strip()}"
    return longer


def _swapped(probe: Probe, prompt: str, answer: str) -> str | None:
    texts = [str(message.get("content") or "") for message in json.loads(prompt)]
    others = _other_values(probe, texts, answer)
    if not others:
        return None
    turn = int.from_bytes(hashlib.sha256(f"{probe.name}\x1f{prompt}\x1f{answer}".encode()).digest()[:8])
    value, other = others[turn % len(others)]
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: other, answer)


def _other_values(probe: Probe, texts: Sequence[str], answer: str) -> list[tuple[str, str]]:
    """Each value that prompt and answer share, with each other of its sort that the answer does not hold; sorted."""
    lines = [line for text in texts for line in text.splitlines()]
    if probe.value == "row":
        rows = [[word.strip(_EDGE) for word in line.split()] for line in lines]
        alike = [(a, b) for a, b in _all_pairs(rows) if len(a) == len(b) >= 3]
        candidates = {(x, y) for a, b in alike for x, y in zip(a, b, strict=True)}
    else:
        pattern = _NUMBER if probe.value == "number" else _ENTITY
        # A sentence's first word is capitalised whatever it names.
        starts = {words[0] for line in lines if (words := line.split())} if probe.value == "entity" else set[str]()
        values = sorted({value for text in texts for value in pattern.findall(text)} - starts)
        candidates = {(x, y) for x in values for y in values}
    return sorted((x, y) for x, y in candidates if x and y and x != y and _holds(answer, x) and not _holds(answer, y))


def _all_pairs(rows: Sequence[Sequence[str]]) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Neighbouring lines of as many words, both ways: a table's rows follow one another."""
    return [pair for a, b in pairwise(rows) for pair in ((a, b), (b, a))]


def _holds(answer: str, value: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", answer) is not None
