"""The decision as a memo of one screen, in Markdown: method, reasons, evidence, cost, and what would change it."""

from collections.abc import Iterator

from pipeline.recipe.methods import METHODS, MethodName, titles
from pipeline.selection.choose import MethodDecision, percentages
from pipeline.selection.evidence import ENOUGH_REVIEWS


def memo(decision: MethodDecision) -> str:
    evidence = decision.evidence
    title = "Do not train now" if decision.method == "none" else f"Train with {METHODS[decision.method].title}"
    summary = (
        f"{evidence.traces:,} traces of {evidence.prompts:,} prompts; {evidence.labelled:,} labelled; "
        f"{evidence.groups:,} prompts with several labelled completions."
    )
    lacked = [f"- {METHODS[name].title}: {each}" for name, why in decision.lacks.items() for each in why]
    explained = not decision.lacks or (decision.method == "none" and not decision.forced)
    parts = [
        [f"## {title}{' (forced by the recipe)' if decision.forced else ''}", "", summary],
        ["**Because**", "", *(f"- {reason}" for reason in decision.reasons)],
        ["**Evidence**", "", *_evidence(decision)],
        []
        if explained
        else [
            f"**What {titles(tuple(decision.lacks))} lacked**",
            "",
            *lacked,
        ],
        ["**Expected cost**", "", *_cost(decision)] if decision.expected else [],
        ["**What would change it**", "", *(f"- {each}" for each in decision.would_change)],
        ["**How far to trust the labels**", "", *_trust(decision)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _evidence(decision: MethodDecision) -> Iterator[str]:
    yield "| evidence | found (95% interval) | held against | for | holds |"
    yield "| --- | --- | --- | --- | --- |"
    for check in decision.checks:
        bound = "" if check.exact else "lower bound " if check.sign == ">=" else "upper bound "
        holds = "yes" if check.holds else "**no**"
        against = f"{bound}{check.sign} {check.figure(check.threshold)}"
        yield f"| {check.name} | {check.interval()} | {against} | {titles(check.needed_by)} | {holds} |"
    evidence = decision.evidence
    for name, value in (
        ("zero-variance share of the logged groups", percentages(evidence.zero_variance_share)),
        ("reward variance within a group", evidence.reward_variance),
        ("distinct completions in a group", evidence.distinct_completions),
        ("margin of the pairs", evidence.margin),
    ):
        if name not in (check.name for check in decision.checks):
            yield f"| {name} | {value} | | | |"


def _cost(decision: MethodDecision) -> Iterator[str]:
    yield "| method | steps | passes over its data | tokens generated | tokens trained | device-hours | USD |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for expected in decision.expected.values():
        passes = "no data" if expected.passes is None else f"{expected.passes:,.1f}"
        yield (
            f"| {METHODS[expected.method].title} | {expected.steps:,} | {passes} | {expected.generated_tokens:,} | "
            f"{expected.trained_tokens:,} | {_amount(expected.device_hours)} | {_amount(expected.usd)} |"
        )
    yield ""
    methods: dict[str, list[MethodName]] = {}
    for expected in decision.expected.values():
        methods.setdefault(expected.basis, []).append(expected.method)
    bases = " ".join(f"{titles(tuple(names))}: {basis}." for basis, names in methods.items())
    yield f"On {next(iter(decision.expected.values())).device}. {bases}"


def _amount(value: float) -> str:
    if value < 0.01:
        return "< 0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def _trust(decision: MethodDecision) -> Iterator[str]:
    evidence = decision.evidence
    for name, source in evidence.noise_sources.items():
        noise = f"{percentages(source.noise)}; {source.known_from}"
        if source.noise.value is None:
            noise = "unknown, for nothing has contradicted it yet"
        yield f"- {source.share:.1%} of the pairs' labels rest on {name}: noise {noise}"
    trust = evidence.trust
    if trust.judge_order.n:
        yield f"- the judge contradicts itself when a pair's order is swapped: {percentages(trust.judge_order)}"
    people = "- people disagree with the side of a label: " + percentages(trust.human)
    yield people + ("" if trust.human.n >= ENOUGH_REVIEWS else f"; {ENOUGH_REVIEWS} reviews replace the above")
