"""The ledger of gates: a line for each target's items and candidate, written before anything is asked. Where the
settings changed after a candidate's first answer, the verdict is INCONCLUSIVE."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import AwareDatetime

from evals.records import EvalPlan
from evals.suites import Suite
from pipeline.core import layout
from pipeline.core.storage import Record, Store, digest_json, locked
from pipeline.recipe import Evaluation
from pipeline.recipe.section import Operational, settings


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


def section_digest(section: Evaluation) -> str:
    """sha256 of what decides a verdict: not where a file lies or which address serves."""
    return digest_json(settings(section, Operational))


def enter(store: Store, plan: EvalPlan, targets: Sequence[Suite], now: datetime) -> list[str]:
    """Write the lines of a gate of the model, before anything is asked; those that are there stand.

    Returns why it may not be asked, and then writes no line: the settings changed after this candidate's first answer.
    """
    iteration, candidate, digest = plan.iteration, plan.candidate.model.digest, section_digest(plan.section)
    name = iteration.model_name
    with locked(store.path(f"{layout.gate_ledger(name)}/lock")):
        there = {line.generation: line for line in lines(store, name) if line.candidate == candidate}
        asked = [there[each.identity()] for each in targets if each.identity() in there]
        reasons = [_changed(line, digest) for line in asked if line.section != digest]
        for suite in () if reasons else targets:
            if suite.identity() not in there:
                line = GateLine(
                    suite=suite.name,
                    generation=suite.identity(),
                    candidate=candidate,
                    champion=iteration.champion.digest,
                    iteration=iteration.id,
                    section=digest,
                    alpha=plan.section.improvement_alpha,
                    at=now,
                )
                store.create(f"{layout.gate_ledger(name)}/{suite.identity()}/{candidate}.json", line)
    return reasons


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
