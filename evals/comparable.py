"""Whether two runs over a suite can be compared: the same items, protocols and samples, nearly all graded. Each reason
against it says what would make them comparable."""

import re
from collections import Counter

from evals.records import EvalArm, Protocol
from evals.runner import sampling
from evals.suites import Suite
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import SuiteSection

MIN_ITEMS = 30
MIN_CLUSTERS = 30
MAX_UNGRADED_SHARE = 0.01


def problems(
    suite: Suite,
    arms: tuple[EvalArm, EvalArm],
    section: Evaluation,
    settings: SuiteSection,
    graded: bool = True,
) -> list[str]:
    """Why these two runs, champion first, cannot be compared; empty when they can. `graded`: by the grades of their
    answers, not by the answers alone."""
    if graded and getattr(settings, "check", "") == "none":
        return ["its items have no reference (check: none): judged suites alone compare the answers"]
    ids = [item.id for item in suite.items]
    plan = sampling(section, settings)
    reasons = level_problems(section)
    items, clusters = (2, 2) if settings.role == "report" else (MIN_ITEMS, MIN_CLUSTERS)  # two have a spread
    if len(ids) < items:
        reasons.append(f"{len(ids)} items are too few (at least {items})")
    if suite.clusters < clusters:
        reasons.append(f"{suite.clusters} clusters are too few (at least {clusters})")
    reasons += _id_problems("the suite", ids, ids)
    reasons += _protocol_problems(*(arm.protocol for arm in arms))
    for name, arm in zip(("champion", "candidate"), arms, strict=True):
        answers = arm.protocol.answers
        if arm.protocol.suite_digest != suite.digest():
            reasons.append(f"{name}: the items are not those that it answered (suite digest)")
        if (answers.temperature, answers.max_completion_tokens, answers.seed, arm.protocol.samples) != (
            plan.temperature, plan.max_completion_tokens, plan.seed, plan.samples,
        ):  # fmt: skip
            reasons.append(f"{name}: it was not sampled as the recipe asks")
        reasons += _id_problems(name, [result.id for result in arm.results], ids)
        reasons += _sample_problems(name, arm, plan.samples, graded)
    return reasons or _prompt_problems(*arms)


ALIKE = {
    "suite": "run both over the same suite",
    "suite_digest": "run both over the same items",
    "samples": "draw as many samples of both",
    "verifier": "grade both with the same release of the verifier",
    "temperature": "sample both by the same plan",
    "max_completion_tokens": "sample both by the same plan",
    "seed": "sample both by the same plan",
    "engine": "serve both with the same engine",
    "version": "serve both with the same release of the engine",
    "device": "serve both on the same kind of device",
    "dtype": "serve both in the same precision",
    "stop_ids": "give both the same eos_token_id in config.json, generation_config.json and tokenizer",
    "context": "give both the same max_position_embeddings in config.json",
    "tokens_digest": "give both the same tokenizer and a chat template that depends on the messages alone",
    "batch_invariant": "serve both with the same flags",
}
"""What makes two protocols equal, by the field that differs."""


def _protocol_problems(champion: Protocol, candidate: Protocol) -> list[str]:
    """The fields in which two protocols differ, each with both values and what would make them equal."""
    one, other = _flat(champion), _flat(candidate)
    return [
        f"the arms ran under different protocols: {name} (champion {_brief(one[name])}, candidate "
        f"{_brief(other[name])}): {ALIKE[name]}"
        for name in one
        if one[name] != other[name]
    ]


def _flat(protocol: Protocol) -> dict[str, object]:
    """The protocol's fields and those of what it holds, side by side."""
    answers = protocol.answers
    return (
        protocol.model_dump(exclude={"answers"})
        | answers.model_dump(exclude={"decoding"})
        | answers.decoding.model_dump()
    )


def _prompt_problems(champion: EvalArm, candidate: EvalArm) -> list[str]:
    """Prompts that the two arms read as other numbers of tokens."""
    lengths = {each.id: each.counts().prompt_tokens for each in champion.results}
    pairs = [(each.id, each.counts().prompt_tokens, lengths[each.id]) for each in candidate.results]
    other = [id for id, one, two in pairs if one and two and one != two]  # 0: an engine that does not say
    return [
        f"{len(other)} prompts, such as that of {min(other)}, are not as long in tokens for both: "
        f"{ALIKE['tokens_digest']}"
    ] if other else []  # fmt: skip


def _brief(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text[:12] if re.fullmatch(r"[0-9a-f]{64}", text) else text


def _id_problems(name: str, ids: list[str], expected: list[str]) -> list[str]:
    if not ids:
        return [f"{name}: empty"]
    repeated = [item for item, times in Counter(ids).items() if times > 1]
    missing, extra = set(expected) - set(ids), set(ids) - set(expected)
    named = (("repeated", repeated), ("missing", missing), ("extra", extra))
    return [f"{name}: {len(which)} {what} item ids, such as {min(which)}" for what, which in named if which]


def _sample_problems(name: str, arm: EvalArm, k: int, graded: bool) -> list[str]:
    reasons: list[str] = []
    counts = [result.counts() for result in arm.results]
    samples, ungraded = sum(each.samples for each in counts), sum(each.ungraded for each in counts)
    if ragged := sum(each.samples != k for each in counts):
        reasons.append(f"{name}: {ragged} items without exactly {k} samples")
    if not graded:
        return reasons
    if unreadable := sum(each.unreadable for each in counts):
        reasons.append(f"{name}: {unreadable} samples whose reference cannot be read")
    if ungraded > MAX_UNGRADED_SHARE * samples:
        reasons.append(f"{name}: {ungraded} of {samples} samples ungraded (at most {MAX_UNGRADED_SHARE:.0%})")
    return reasons


def level_problems(section: Evaluation) -> list[str]:
    """Why a level of the recipe is none of a test."""
    levels = {"alpha": section.alpha, "improvement_alpha": section.improvement_alpha}
    return [f"{name} is {level}, not between 0 and 0.5" for name, level in levels.items() if not 0 < level < 0.5]
