"""The evidence of a judged suite: who judged, what it preferred of each pair, and the numbers that this gives.

In a bundle each judged suite has a folder: `judge.json` says who judged and what went wrong, `pairs.jsonl` has a line
for each pair and no text, `measurement.json` the numbers as they came out. Owns these files and the measurement.
Refuses to ask (judged.py) and to decide (gate.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from evals import win_rate
from evals.comparable import MIN_CLUSTERS, MIN_ITEMS
from evals.comparable import problems as comparison_problems
from evals.measurements import Difference, Guard, JudgedMeasurement, WinRate
from evals.results import EvalArm
from evals.suites import Suite
from evals.suites.lines import drawn
from evals.win_rate import JudgedPair
from pipeline.core.storage import Record
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import JudgedSuite

JUDGE, PAIRS, MEASUREMENT = FILES = "judge.json", "pairs.jsonl", "measurement.json"


class JudgeIdentity(Record):
    """Who judged: the model's name and the digest of its weights, and `id`, which stands for rubric and prompt too."""

    model: str
    digest: str
    id: str


class JudgedProvenance(Record):
    """Who judged a suite; None where the recipe names nobody. `problems` are why it was not, or not wholly, judged."""

    suite: str
    judge: JudgeIdentity | None
    problems: tuple[str, ...] = ()


class JudgedEvidence(Record):
    """A judged suite in memory."""

    provenance: JudgedProvenance
    pairs: tuple[JudgedPair, ...] = ()


def measure(
    evidence: JudgedEvidence,
    suite: Suite,
    arms: tuple[EvalArm, EvalArm],
    section: Evaluation,
    reduced: bool = False,
) -> JudgedMeasurement:
    """The win rates over the answers of `arms`, champion first, to `suite`; or why these judgements show nothing.

    `reduced`: of the items some were erased with their counts, and so were their pairs.
    """
    provenance, pairs = evidence.provenance, evidence.pairs
    settings = next(each for each in section.judged if each.name == provenance.suite)
    problems = (
        list(provenance.problems)
        or pairing_problems(suite, arms, section)
        or _problems(pairs, suite, None if reduced else settings, section)
    )
    rate = loss = None
    if not problems:
        improves = settings.role == "target" and section.improve != "cost"
        alpha = section.target_alpha() if improves else section.alpha
        rate = win_rate.win_rate(pairs, alpha, section.seed)
        if guards_rate(settings, section):
            same = alpha == section.alpha
            loss = _loss(rate if same else win_rate.win_rate(pairs, section.alpha, section.seed), settings)
    name = provenance.judge.model if provenance.judge else ""
    return JudgedMeasurement(suite=settings.name, judge=name, problems=tuple(problems), win_rate=rate, loss=loss)


def guards_rate(settings: JudgedSuite, section: Evaluation) -> bool:
    """Whether the gate holds the rate's distance below one half to the suite's margin."""
    return settings.role == "guard" or (settings.role == "target" and section.improve != "all")


def pairing_problems(suite: Suite, arms: tuple[EvalArm, EvalArm], section: Evaluation) -> list[str]:
    """Why the answers of these runs cannot be held against each other. How they were graded is no matter here."""
    reasons = comparison_problems(suite, arms, section, section.suite(suite.name), graded=False)
    return [f"its answers are those to {suite.name}: {why}" for why in reasons]


def _problems(
    pairs: tuple[JudgedPair, ...], suite: Suite, settings: JudgedSuite | None, section: Evaluation
) -> list[str]:
    """`settings`: None where the pairs are what is left of those that were drawn."""
    asked = drawn(suite.items, settings.items, section.seed) if settings else suite.items
    items = {item.id: item.cluster for item in asked if settings or item.id in {each.item for each in pairs}}
    reasons = win_rate.problems(pairs)
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


def files(section: Evaluation) -> list[str]:
    """Names of a bundle's files on its judged suites."""
    return [f"{each.name}/{file}" for each in section.judged for file in FILES]


def write(folder: Path, evidence: JudgedEvidence, measured: JudgedMeasurement) -> None:
    """Into the bundle that is made in `folder`."""
    below = folder / evidence.provenance.suite
    below.mkdir()
    (below / JUDGE).write_text(_text(evidence.provenance))
    (below / PAIRS).write_text("".join(each.model_dump_json() + "\n" for each in evidence.pairs))
    (below / MEASUREMENT).write_text(_text(measured))


def read(path: Path, section: Evaluation) -> tuple[JudgedEvidence, ...]:
    """Of a bundle whose files match its manifest. Raises ValueError naming a file that is none of these."""
    return tuple(_read(path / each.name) for each in section.judged)


def recorded(path: Path, measured: tuple[JudgedMeasurement, ...]) -> bool:
    """Whether these are, to the bit, the numbers that the bundle records."""
    return all((path / each.suite / MEASUREMENT).read_text() == _text(each) for each in measured)


def _read(below: Path) -> JudgedEvidence:
    try:
        provenance = JudgedProvenance.model_validate_json((below / JUDGE).read_bytes())
        lines = (below / PAIRS).read_bytes().split(b"\n")
        pairs = tuple(JudgedPair.model_validate_json(line) for line in lines if line)
    except ValueError as error:
        raise ValueError(f"{below} is no evidence of a judged suite ({error}). Fetch the bundle again.") from error
    if provenance.suite != below.name:
        raise ValueError(f"{below / JUDGE} is of the suite {provenance.suite}. Fetch the bundle again.")
    return JudgedEvidence(provenance=provenance, pairs=pairs)


def _text(record: Record) -> str:
    return json.dumps(record.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
