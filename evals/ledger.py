"""The ledger of gates: a line for each target's items and candidate, written before anything is asked, with the level
of its test and the seed of its answers. Where the settings changed after a candidate's first answer, the verdict is
INCONCLUSIVE."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import AwareDatetime

from evals import luck
from evals.records import EvalPlan, Trial
from evals.suites import Suite
from pipeline.core import layout
from pipeline.core.storage import Record, Store, digest_json, locked
from pipeline.recipe import Evaluation
from pipeline.recipe.section import Operational, settings


class GateLine(Record):
    """A candidate was asked about over one target's items. `generation` (of the suite), `candidate` and `champion` are
    digests; `section` is that of the margins and levels registered beforehand."""

    suite: str
    generation: str
    candidate: str
    champion: str
    iteration: str
    section: str
    trial: Trial
    at: AwareDatetime


def section_digest(section: Evaluation) -> str:
    """sha256 of what decides a verdict: not where a file lies or which address serves."""
    return digest_json(settings(section, Operational))


def enter(store: Store, plan: EvalPlan, targets: Sequence[Suite], now: datetime) -> tuple[Trial, list[str]]:
    """Write the lines of a gate of the model, before anything is asked; those that are there stand. Returns the gate's
    level and seed, and why it may not be asked, and then writes no line: the settings changed after this candidate's
    first answer."""
    iteration, candidate, digest = plan.iteration, plan.candidate.model.digest, section_digest(plan.section)
    name = iteration.model_name
    with locked(store.path(f"{layout.gate_ledger(name)}/lock")):
        every = lines(store, name)
        there = {line.generation: line for line in every if line.candidate == candidate}
        asked = [there[each.identity()] for each in targets if each.identity() in there]
        reasons = [_changed(line, digest) for line in asked if line.section != digest]
        trial = next((line.trial for line in there.values()), None) or Trial(
            level=next_level(every, plan.section.false_discovery_rate, iteration.champion.digest, now),
            seed=int.from_bytes(hashlib.sha256(f"{plan.section.seed}/{candidate}".encode()).digest()[:4]) >> 1,
        )
        for suite in () if reasons else targets:
            if suite.identity() not in there:
                line = GateLine(
                    suite=suite.name,
                    generation=suite.identity(),
                    candidate=candidate,
                    champion=iteration.champion.digest,
                    iteration=iteration.id,
                    section=digest,
                    trial=trial,
                    at=now,
                )
                store.create(f"{layout.gate_ledger(name)}/{suite.identity()}/{candidate}.json", line)
    return trial, reasons


def next_level(entered: Sequence[GateLine], rate: float, champion: str, now: datetime) -> float:
    """The level of a gate after those `entered`, the oldest first, at false discovery rate `rate`. A candidate counts
    as promoted once a gate has it as its champion, as this one has `champion` (a digest)."""
    champions = {champion, *(line.champion for line in entered)}
    gates = {line.candidate: line for line in reversed(entered)}.values()  # by its first line
    period: list[GateLine] = []
    for line in sorted(gates, key=lambda line: line.at):
        period = [*period, line] if _goes_on(period, line.at) else [line]
    period = period if _goes_on(period, now) else []
    promoted = [number for number, line in enumerate(period, 1) if line.candidate in champions]
    return luck.level(rate, len(period) + 1, promoted)


def _goes_on(period: Sequence[GateLine], at: datetime) -> bool:
    """Whether a gate at that time is of the period that has these gates."""
    return 0 < len(period) < luck.PERIOD and at - period[0].at < timedelta(days=luck.PERIOD)


def lines(store: Store, model_name: str) -> tuple[GateLine, ...]:
    """All lines of a model, the oldest first. Raises ValueError naming a file that is none."""
    files = store.path(layout.gate_ledger(model_name)).glob("*/[!.]*.json")
    read = [store.read(str(file.relative_to(store.root)), GateLine) for file in files]
    return tuple(sorted((line for line in read if line), key=lambda line: (line.at, line.generation, line.candidate)))


def _changed(first: GateLine, digest: str) -> str:
    return (
        f"{first.suite}: iteration {first.iteration} asked about this candidate on {first.at:%Y-%m-%d} under other "
        f"settings of the section evaluation (digest {first.section[:12]}, now {digest[:12]}), and a margin or level "
        "that is set after the answers proves nothing. Set them back, or ask other items"
    )
