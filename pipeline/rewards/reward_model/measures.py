"""What held-out users' thumbs and probes say of a scorer, and whether its word counts for that. A probe is a logged
answer and a twin that breaks one rule of the policy and differs in nothing else. The AUC's interval is percentiles of a
bootstrap over users; one without width is opened by the rule of three."""

import hashlib
import json
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipeline.core.estimate import Array, Estimate
from pipeline.recipe.rewards import Probe, RewardModelSettings
from pipeline.rewards.reward_model.records import ProbeResult, ThumbCounts

DRAWS = 1000
MIN_USERS = 10
REFUSAL = "I'm sorry, but I can't help with that."
_EDGE = ".,;:!?()[]\"'"


def auc(scores: Sequence[float], ups: Sequence[bool], users: Sequence[str]) -> Estimate:
    """Chance that a thumb up scores over a thumb down (ties by half), with a 95% interval over users. `n`: thumbs."""
    order = np.argsort(np.asarray(scores, np.float64), kind="stable")
    ranked, up = np.asarray(scores, np.float64)[order], np.asarray(ups, bool)[order]
    _, tie = np.unique(ranked, return_inverse=True)
    names, cluster = np.unique(np.asarray(users, object).astype(str)[order], return_inverse=True)
    if not any(ups) or all(ups) or len(names) < MIN_USERS:
        return Estimate(value=None, low=None, high=None, n=len(scores))

    def area(weights: Array) -> float | None:
        row = weights[cluster]
        ups_at = np.bincount(tie, np.where(up, row, 0.0))
        downs_at = np.bincount(tie, np.where(up, 0.0, row))
        total = ups_at.sum() * downs_at.sum()
        below = np.cumsum(downs_at) - downs_at / 2
        return float(ups_at @ below) / float(total) if total else None

    value, users_drawn = area(np.ones(len(names))), np.full(len(names), 1 / len(names))
    assert value is not None
    draws = map(area, np.random.default_rng(0).multinomial(len(names), users_drawn, DRAWS))
    low, high = np.quantile([draw for draw in draws if draw is not None], [0.025, 0.975])
    margin = 3 / len(names)
    low = min(float(low), value, 1 - margin) if value == 1 else min(float(low), value)
    high = max(float(high), value, margin) if value == 0 else max(float(high), value)
    return Estimate(value=value, low=low, high=high, n=len(scores))


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


def twin(probe: Probe, prompt: str, answer: str) -> str | None:
    """The violating twin of an answer, or None where this probe can make none. `prompt`: chat messages as JSON."""
    match probe.kind:
        case "append":
            return None if probe.text.casefold() in answer.casefold() else f"{answer.rstrip()} {probe.text}"
        case "lengthen":
            longer = answer.rstrip()
            while len(longer) < 2 * len(answer):
                longer = f"{longer} {probe.text or answer.strip()}"
            return longer
        case "refuse":
            refusal = probe.text or REFUSAL
            return None if answer.strip().casefold().startswith(refusal.casefold()) else refusal
        case "swap":
            return _swapped(probe, prompt, answer)


def _swapped(probe: Probe, prompt: str, answer: str) -> str | None:
    others = _other_values([str(message.get("content") or "") for message in json.loads(prompt)], answer)
    if not others:
        return None
    turn = int.from_bytes(hashlib.sha256(f"{probe.name}\x1f{prompt}\x1f{answer}".encode()).digest()[:8])
    value, other = others[turn % len(others)]
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: other, answer)


def _other_values(texts: Sequence[str], answer: str) -> list[tuple[str, str]]:
    """Each word of a line that the answer shares, with the word at its place in a neighbouring line of as many words,
    which the answer does not hold; sorted. A table's rows follow one another."""
    rows = [[word.strip(_EDGE) for word in line.split()] for text in texts for line in text.splitlines()]
    alike = [(a, b) for a, b in pairwise(rows) if len(a) == len(b) >= 3]
    candidates = {pair for a, b in alike for x, y in zip(a, b, strict=True) for pair in ((x, y), (y, x))}
    return sorted((x, y) for x, y in candidates if x and y and x != y and _holds(answer, x) and not _holds(answer, y))


def _holds(answer: str, value: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", answer) is not None
