"""The ledger of gates: so that luck has no more chances in a year than the recipe plans.

A candidate that is no better passes a test at level alpha once in 1/alpha times, and twenty tests at 5% let one through
in 64 of 100 years. So the recipe plans the year (`luck_per_year`, `gates_per_year`), and each gate spends its level
before it asks anything: a line for each target's items and candidate (both by digest), create-if-absent. To ask again
is free. Another training is another candidate, hence another line; so are other items, because fresh items cure
overfitting to the old ones, and not luck. Owns the lines and their sum. Refuses to judge: what it says is a reason for
INCONCLUSIVE.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import AwareDatetime

from evals.suites import Suite
from pipeline import layout
from pipeline.recipe import Evaluation
from pipeline.section import Operational, settings
from pipeline.storage import ModelRef, Record, Store, digest_json

YEAR = timedelta(days=365)
ROUNDING = 1e-9


class GateLine(Record):
    """A candidate was asked about over one target's items, by a test at level `alpha`. `generation` (of the suite),
    `candidate` and `champion` are digests; `section` is that of the margins and levels registered beforehand."""

    suite: str
    generation: str
    candidate: str
    champion: str
    iteration: str
    section: str
    alpha: float
    at: AwareDatetime


class GateEntry(NamedTuple):
    """What a gate is about to ask: whether a candidate of the iteration is better on the items of these targets.

    `confirms`: the second step, whose level the first step has spent; its items must be such that no gate has asked.
    """

    iteration: str
    champion: ModelRef
    candidate: ModelRef
    section: Evaluation
    targets: Sequence[Suite]
    confirms: bool = False

    def line(self, suite: Suite, now: datetime) -> GateLine:
        return GateLine(
            suite=suite.name,
            generation=suite.identity(),
            candidate=self.candidate.digest,
            champion=self.champion.digest,
            iteration=self.iteration,
            section=section_digest(self.section),
            alpha=0.0 if self.confirms else self.section.gate_alpha(),
            at=now,
        )


def section_digest(section: Evaluation) -> str:
    """sha256 of what decides a verdict: not where a file lies or which address serves."""
    return digest_json(settings(section, Operational))


def enter(store: Store, model_name: str, entry: GateEntry, now: datetime) -> list[str]:
    """Write the lines of a gate of the model, before anything is asked; those that are there stand.

    Returns why it may not be asked, and then writes no line: the year's luck is spent, or the settings changed after
    this candidate's first answer.
    """
    section, candidate, digest = entry.section, entry.candidate.digest, section_digest(entry.section)
    with store.alone(f"{layout.gate_ledger(model_name)}/lock"):
        ledger = lines(store, model_name)
        there = {line.generation: line for line in ledger if line.candidate == candidate}
        new = [entry.line(suite, now) for suite in entry.targets if suite.identity() not in there]
        reasons = [
            _changed(there[each.identity()], digest)
            for each in entry.targets
            if each.identity() in there and there[each.identity()].section != digest
        ]
        if entry.confirms:
            reasons += [
                f"{each.name}: another gate has asked its items meanwhile, and they confirm nothing any more: evaluate "
                "again in a new iteration"
                for each in entry.targets
                if not unseen(ledger, each.identity(), candidate)
            ]
        if not reasons and new and section.luck_per_year is not None:
            reasons = _overspent(ledger, new, section.luck_per_year, now)
        for line in () if reasons else new:
            store.create(layout.gate_line(model_name, line.generation, candidate), line)
    return reasons


def exhausted(ledger: Sequence[GateLine], section: Evaluation, now: datetime) -> list[str]:
    """Why a candidate that is trained now could not be asked about, for who is about to pay for the training."""
    if section.luck_per_year is None:
        return []
    unknown = {"generation": "", "candidate": "", "champion": "", "iteration": "", "section": ""}
    chance = GateLine(suite="", alpha=section.gate_alpha(), at=now, **unknown)
    return _overspent(ledger, [chance], section.luck_per_year, now)


def lines(store: Store, model_name: str) -> tuple[GateLine, ...]:
    """All lines of a model, the oldest first. Raises ValueError naming a file that is none."""
    files = store.path(layout.gate_ledger(model_name)).glob("*/[!.]*.json")
    read = [store.read(str(file.relative_to(store.root)), GateLine) for file in files]
    return tuple(sorted((line for line in read if line), key=lambda line: (line.at, line.generation, line.candidate)))


def spent(ledger: Sequence[GateLine], now: datetime) -> float:
    """The luck of the year before `now`: the sum of the levels at which candidates could pass (a union bound).

    All targets of a gate must improve, so a gate is one chance: of a candidate under one section the suite with most
    lines counts. A line from the future counts too: a clock that was set back gives nobody a new year.
    """
    chances: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in ledger:
        if line.at > now - YEAR:
            chances[line.candidate, line.section][line.suite] += line.alpha
    return math.fsum(max(by_suite.values()) for by_suite in chances.values())


def _overspent(ledger: Sequence[GateLine], new: Sequence[GateLine], luck: float, now: datetime) -> list[str]:
    before, after = spent(ledger, now), spent([*ledger, *new], now)
    if after <= luck + ROUNDING or after <= before:
        return []
    recent = [line.at for line in ledger if line.at > now - YEAR]
    until = f"the oldest of them is a year old on {min(recent) + YEAR:%Y-%m-%d}" if recent else "none was asked"
    return [
        f"the gates of the last year have spent {before:.4g} of evaluation.luck_per_year {luck}, and this one needs "
        f"{after - before:.4g} more: a further chance is further luck. Wait ({until}), or raise gates_per_year for the "
        "next year: each gate then has less of the luck, and needs more samples"
    ]


def _changed(first: GateLine, digest: str) -> str:
    return (
        f"{first.suite}: iteration {first.iteration} asked about this candidate on {first.at:%Y-%m-%d} under other "
        f"settings of the section evaluation (digest {first.section[:12]}, now {digest[:12]}), and a margin or level "
        "that is set after the answers proves nothing. Set them back, or ask other items"
    )


def unseen(ledger: Sequence[GateLine], generation: str, candidate: str) -> bool:
    """Whether no gate has asked about these items (by the suite's digest): only such may confirm. The confirmation of
    the `candidate` itself, which may go on after a kill, is no other gate."""
    return all(line.generation != generation or (line.candidate == candidate and line.alpha == 0) for line in ledger)
