"""What a training would take in device hours, good to a factor of two or three, and what groups would teach it.
Compute is 2 P floating-point operations a token forward and 4 P backward (arXiv 2001.08361, section 2.1)."""

import math
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.estimate import UNKNOWN, Estimate, share
from pipeline.core.model_files import header, weight_files
from pipeline.recipe import Accelerator
from pipeline.selection.evidence import Evidence, PromptAttempts

MIN_TRIED_TWICE = 20
"""Prompts with two verified attempts; with fewer the variance of answers to one prompt is unknown."""


def device_hours_of(flops: float, parameters: float, accelerator: Accelerator) -> float:
    """`flops`: of one parameter."""
    return flops * parameters / (accelerator.peak_tflops * 1e12 * accelerator.utilisation) / 3600


def zero_variance(evidence: Evidence, generations: int) -> Estimate:
    """Expected share of groups of `generations` fresh completions that are all right or all wrong, on the frontier.

    E[p^G + (1 - p)^G] of the beta-binomial (Skellam 1948, JRSS B 10), with Wilson's interval at the number of prompts
    that the jackknife finds the estimate worth.
    """
    flat_share = _flat(evidence.attempts, generations)
    twice = sum(each.prompts for each in evidence.attempts if each.of > 1)
    if flat_share is None or twice < MIN_TRIED_TWICE:
        return UNKNOWN
    prompts = sum(each.prompts for each in evidence.attempts)
    variance = 0.0
    for place, each in enumerate(evidence.attempts):
        fewer = (*evidence.attempts[:place], each._replace(prompts=each.prompts - 1), *evidence.attempts[place + 1 :])
        without = _flat(fewer, generations)
        variance += (
            each.prompts * ((flat_share if without is None else without) - flat_share) ** 2 * (prompts - 1) / prompts
        )
    worth = min(evidence.frontier_prompts, twice)  # one attempt says nothing of how a prompt's answers differ
    if variance > 0:
        worth = max(1, min(worth, round(flat_share * (1 - flat_share) / variance)))
    return share(flat_share * worth, worth).model_copy(update={"n": evidence.frontier_prompts})


def _flat(attempts: Sequence[PromptAttempts], generations: int) -> float | None:
    a, b = difficulty(attempts)
    flat, prompts = 0.0, 0
    for each in attempts:
        if each.frontier:
            yes, no = a + each.right, b + each.of - each.right
            flat += each.prompts * (_power(yes, no, generations) + _power(no, yes, generations))
            prompts += each.prompts
    return min(1.0, flat / prompts) if prompts else None


def difficulty(attempts: Sequence[PromptAttempts]) -> tuple[float, float]:
    """Beta with the mean chance m and the mean square m2 of the prompts, one imagined uniform prompt among them.

    right (right - 1) / (of (of - 1)) is an unbiased estimate of a prompt's squared chance, whatever `of` is.
    """
    twice = [each for each in attempts if each.of > 1]
    total = 1 + sum(each.prompts for each in twice)
    m = (1 / 2 + sum(each.prompts * each.right / each.of for each in twice)) / total
    squares = (each.prompts * each.right * (each.right - 1) / (each.of * (each.of - 1)) for each in twice)
    m2 = (1 / 3 + sum(squares)) / total
    variance = min(max(m2 - m * m, 1e-4 * m * (1 - m)), (1 - 1e-4) * m * (1 - m))
    strength = m * (1 - m) / variance - 1
    return m * strength, (1 - m) * strength


def _power(a: float, b: float, exponent: int) -> float:
    """E[p^exponent] for p from Beta(a, b): B(a + exponent, b) / B(a, b)."""
    return math.exp(math.lgamma(a + exponent) - math.lgamma(a) + math.lgamma(a + b) - math.lgamma(a + b + exponent))


def parameters(model: str | Path) -> int | None:
    """Number of weights of a Hugging Face model directory; None where its safetensors are not whole."""
    try:
        return sum(math.prod(shape) for file in weight_files(Path(model)) for _, shape in header(file).values())
    except ValueError:
        return None
