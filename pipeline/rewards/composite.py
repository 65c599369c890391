"""`final_reward`: one number in [0, 1] from the components that apply, or null with a reason (docs/rewards.md). A
component that should have a value and has none is not one that does not apply; a label that failed is never 0. And the
rules that need no reference: format, length, repetition (1 less seq-rep-4, arXiv 1908.04319) and latency, each in
[0, 1] or absent, in linear time for any text."""

import ast
import math
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

from pipeline.core.conversation import split
from pipeline.recipe.rewards import Rewards, Rules, VerifierKind, Weights
from pipeline.recipe.sources import MODELS
from pipeline.rewards.records import ABSENT, COMPONENTS, DOES_NOT_APPLY, Finding
from pipeline.rewards.verifiers import Grade, VerifierTask
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


Profile = Literal["verified", "rated", "judged", "fresh", "imported", "demonstrated"]


class Reward(NamedTuple):
    """One composed reward, and how it came to be."""

    final_reward: float | None
    reason: str
    """'' for a label; else `no_signal`, or the reason of the heaviest component that could not speak."""
    profile: Profile
    weights: dict[str, float]
    """Of the components with a value; they sum to 1, or there are none."""
    findings: dict[str, Finding]

    @property
    def missing(self) -> dict[str, str]:
        """Component to reason, of those that should have spoken."""
        silent = {name: finding.reason for name, finding in self.findings.items() if finding.value is None}
        return {name: reason for name, reason in silent.items() if reason != ABSENT}


def profile_of(reference: str | None, rated: bool, fresh: bool, imported: Profile | None = None) -> Profile:
    """Which weights a completion is scored by. `rated`: it has feedback that counts; `fresh`: it was drawn just now;
    `imported`: the profile of an import's, which brings its reward."""
    if imported:
        return imported
    if reference:
        return "verified"
    if fresh:
        return "fresh"
    return "rated" if rated else "judged"


def weights_of(profile: Profile, settings: Rewards) -> Weights:
    """An import's row brings its reward: nothing else is weighed."""
    return Weights() if profile in MODELS else getattr(settings, profile)


def compose(
    findings: Mapping[str, Finding], profile: Profile, settings: Rewards, min_weight: float = Rewards.min_weight
) -> Reward:
    """The reward of one completion. A component that is not in `findings` does not apply. `given` in it is an import's
    reward, which is taken as it stands."""
    all_findings = {name: findings.get(name, DOES_NOT_APPLY) for name in COMPONENTS}
    if profile in MODELS:
        return Reward(findings["given"].value, "", profile, {"given": 1.0}, all_findings)
    weights = weights_of(profile, settings)
    wanted = {name: weight for name in COMPONENTS if (weight := getattr(weights, name)) > 0}
    applying = {name: weight for name, weight in wanted.items() if all_findings[name].reason != ABSENT}
    values = {name: value for name in applying if (value := all_findings[name].value) is not None}
    spoke = sum(applying[name] for name in values)
    if spoke == 0 or spoke < min_weight * sum(applying.values()):
        silent = sorted((name for name in applying if name not in values), key=lambda name: -applying[name])
        return Reward(None, all_findings[silent[0]].reason if silent else "no_signal", profile, {}, all_findings)
    heaviest = max(applying[name] for name in values)  # divided by it, no product of a small weight is lost
    relative = {name: applying[name] / heaviest for name in values}
    whole = sum(relative.values())
    total = sum(relative[name] * value for name, value in values.items()) / whole
    shares = {name: weight / whole for name, weight in relative.items()}
    return Reward(total, "", profile, shares, all_findings)


def verified(
    check: VerifierTask, grade: Grade, settings: Rewards, latency_s: float | None = None
) -> dict[str, Finding]:
    """What verifier and rules say of a completion with a reference: all of it can be said of a fresh one."""
    score = grade.outcome.score
    correct = Finding(None, grade.outcome.value) if score is None else Finding(score)
    return {"correct": correct, **measure(check.completion, check.kind, latency_s, settings.rules)}
