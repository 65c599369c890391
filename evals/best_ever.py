"""The best ever on a suite's generation: a third run, where the champion is not the best model that there was.

After a rollback, or where losses within a margin add up, a champion may be worse than a model before it. So the answers
that the journals have of earlier models are graded again, which asks nobody, and the candidate is compared with the
best of them too, paired. Those count that were champion at a gate over the same items, or passed one (the ledger and
the verdicts say so), and whose answers under the candidate's protocol are all there. The best of several is lucky-high,
which makes the comparison strict; the margin is the suite's.
"""

from __future__ import annotations

from collections.abc import Callable

from evals import ledger
from evals.bundle import SuiteEvidence
from evals.comparable import problems
from evals.gate import GateVerdict, Verdict
from evals.plan import EvalPlan
from evals.results import EvalArm
from evals.runner import BATCHED, Grader, graded, questions, sampling
from evals.suites import Suite
from pipeline import layout
from pipeline.recipe.suites import LibrarySuite
from pipeline.serving.journal import open_journal
from pipeline.storage import ModelRef, Store


def with_best_ever(
    store: Store, plan: EvalPlan, evidence: SuiteEvidence, grader: Grader, log: Callable[[str], None]
) -> SuiteEvidence:
    """The evidence with the best earlier model as a third arm, where there is one above this champion."""
    suite, settings = evidence.suite, plan.section.suite(evidence.suite.name)
    if settings.role != "target" or isinstance(settings, LibrarySuite) or suite.advisory:
        return evidence
    earlier = (_arm(store, plan, evidence, model, grader) for model in earlier_models(store, plan, suite))
    comparable = [
        arm for arm in earlier if arm and not problems(suite, (arm, evidence.arms[1]), plan.section, settings)
    ]
    best = max(comparable, key=lambda arm: (_right(arm), arm.model.digest), default=None)
    if best is None or _right(best) <= _right(evidence.arms[0]):
        return evidence
    log(f"evaluation: {suite.name}: the best ever is {best.model.digest[:12]}, found among {len(comparable)} models")
    return evidence.model_copy(update={"best": best})


def earlier_models(store: Store, plan: EvalPlan, suite: Suite) -> list[str]:
    """Digests of the models that were champion or passed at a gate over these items, but for the two of this gate."""
    models: set[str] = set()
    for line in ledger.lines(store, plan.iteration.model_name):
        if line.generation != suite.identity():
            continue
        models.add(line.champion)
        verdict = store.read(layout.iteration(line.iteration, layout.GATE_VERDICT), GateVerdict)
        if verdict and verdict.verdict is Verdict.PASS and verdict.candidate.digest == line.candidate:
            models.add(line.candidate)
    return sorted(models - {plan.iteration.champion.digest, plan.candidate.model.digest})


def _arm(store: Store, plan: EvalPlan, evidence: SuiteEvidence, model: str, grader: Grader) -> EvalArm | None:
    """The model's journalled answers, graded; None where one is not there."""
    suite, protocol = evidence.suite, evidence.arms[1].protocol
    if not store.path(layout.answers(model, protocol.answers.digest())).is_file():
        return None
    drawn = sampling(plan.section, plan.section.suite(suite.name))
    asked = questions(model, suite, suite.items, drawn, protocol.answers.digest())
    with open_journal(store, model, protocol.answers) as journal:
        answers = [answer for each in asked if (answer := journal.answers.get(each.request.key))]
    if len(answers) < len(asked):
        return None
    results = graded(grader, suite, suite.items, drawn.samples, answers, protocol.answers.decoding.engine != BATCHED)
    return EvalArm(model=ModelRef(uri="", digest=model), protocol=protocol, results=results)


def _right(arm: EvalArm) -> int:
    return sum(result.counts().right for result in arm.results)
