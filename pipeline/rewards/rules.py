"""Rules that need no reference: format, length, repetition and latency, each in [0, 1] or absent. Repetition
is 1 less seq-rep-4 (arXiv 1908.04319). All in linear time, for any text."""

import ast
import math
import re
import warnings
from contextlib import suppress

from pipeline.core.conversation import split
from pipeline.recipe.rewards import Rules, VerifierKind
from pipeline.rewards.records import DOES_NOT_APPLY, Finding
from pipeline.rewards.verifiers.answers import final_answer, visible
from pipeline.rewards.verifiers.code import python_block
from pipeline.rewards.verifiers.structured import json_of

NGRAM = 4
MAX_PARSED_CHARS = 20_000

_TOKEN = re.compile(r"\w{1,16}|[^\w\s]{1,8}")


def measure(completion: str, kind: VerifierKind | None, latency_s: float | None, settings: Rules) -> dict[str, Finding]:
    """The findings of all four rules. `latency_s` in seconds. Raises nothing on any text or number."""
    text = visible(completion)
    long_enough = settings.min_chars <= len(text.strip()) <= settings.max_chars
    return {
        "format": DOES_NOT_APPLY if kind is None else Finding(float(_well_formed(text, kind))),
        "length": Finding(float(long_enough)),
        "repetition": Finding(distinct_share(text)),
        "latency": _latency(latency_s, settings.slow_s),
    }


def distinct_share(text: str) -> float:
    """Different 4-grams over all 4-grams; 1 for a text too short to have any."""
    tokens = _TOKEN.findall(text.casefold())
    total = len(tokens) - NGRAM + 1
    if total < 1:
        return 1.0
    return len(set(zip(*(tokens[start:] for start in range(NGRAM)), strict=False))) / total


def _latency(latency_s: float | None, slow_s: float) -> Finding:
    if latency_s is None or not math.isfinite(latency_s) or latency_s < 0:
        return DOES_NOT_APPLY
    return Finding(max(0.0, 1.0 - latency_s / slow_s))


def _well_formed(text: str, kind: VerifierKind) -> bool:
    if kind == "code":
        code = python_block(text) or ""
        return bool(code.strip()) and _parses(code)
    if kind == "json_schema":
        with suppress(ValueError, RecursionError):  # of a number or a nesting that Python does not read
            return json_of(text) is not None
        return False
    if kind == "calls":
        return bool(split(text)[1])
    return final_answer(text) is not None


def _parses(code: str) -> bool:
    """Longer code is not parsed: neither the parser's time nor its memory is linear in hostile code."""
    if len(code) > MAX_PARSED_CHARS:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dubious escapes, at each completion
            ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        return False
    return True
