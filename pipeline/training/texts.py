"""Figures of a batch of completions. A token is a word, a number or a run of punctuation; variety (distinct-n, arXiv
1510.03055) is measured within draws of one completion a prompt, then averaged."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from pipeline.rewards.verifiers import final_answer

PREFIX_TOKENS = 8
OPENING_CHARS = 400
"""A refusal is looked for in so much of the beginning: later it is more likely to be quoted."""

_TOKEN = re.compile(r"\w+|[^\w\s]+")
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:very |so |really )?(?:sorry|unable|not able|afraid)|i (?:can(?:not|'t| not)|won't|will not)|"
    r"i (?:must|have to) decline|as an ai|my apologies|i apologi[sz]e)\b",
    re.IGNORECASE,
)


def completion_statistics(completions: Sequence[str], prompts: Sequence[str]) -> dict[str, float]:
    """Shares in [0, 1] of completions, one prompt each, in any order; nothing for none of them. text/prefix_share: of
    the most common first eight tokens (a shorter completion: all that it has), the share of the other prompts whose
    answers begin like that; 0 where each prompt has its own. text/distinct_2: different bigrams over all.
    text/refusals, text/answered: completions that refuse, and that hold a final answer."""
    if not completions:
        return {}
    tokens = [_TOKEN.findall(text) for text in completions]
    groups: defaultdict[str, list[list[str]]] = defaultdict(list)
    for prompt, words in zip(prompts, tokens, strict=True):
        groups[prompt].append(words)
    return {
        "text/prefix_share": _prefix_share(list(groups.values())),
        "text/distinct_2": _distinct_bigrams(list(groups.values())),
        "text/refusals": fmean(map(refuses, completions)),
        "text/answered": fmean(final_answer(text) is not None for text in completions),
    }


def refuses(text: str) -> bool:
    """Whether an answer begins as a refusal does."""
    return _REFUSAL.search(text[:OPENING_CHARS].replace("\u2019", "'")) is not None


def _prefix_share(groups: Sequence[Sequence[Sequence[str]]]) -> float:
    """Of the most common opening: how many other prompts share it, each prompt weighing the same."""
    if len(groups) < 2:
        return 0.0
    weight: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for group in groups:
        for words in group:
            weight[tuple(words[:PREFIX_TOKENS])] += 1 / len(group)
    return min(1.0, max(0.0, max(weight.values()) - 1) / (len(groups) - 1))


def _distinct_bigrams(groups: Sequence[Sequence[Sequence[str]]]) -> float:
    """1 for completions too short to have bigrams: they repeat nothing."""
    shares: list[float] = []
    for draw in range(max(map(len, groups))):
        bigrams = [pair for group in groups if draw < len(group) for pair in pairwise(group[draw])]
        if bigrams:
            shares.append(len(set(bigrams)) / len(bigrams))
    return fmean(shares) if shares else 1.0
