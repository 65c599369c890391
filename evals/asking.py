"""Asking both models of an evaluation the same questions, the champion first.

What is in the journal (runner.py) is there for every later gate and attempt, and is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evals.bundle import SuiteEvidence
from evals.lm_eval import LmEvalRun
from evals.plan import EvalPlan
from evals.results import EvalArm
from evals.runner import Respondent, sampling
from evals.services import EvalServices
from evals.suites import Suite
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe.suites import LmEvalSuite


class ModelRuns(NamedTuple):
    """What both models of an evaluation are asked with."""

    store: Store
    plan: EvalPlan
    services: EvalServices
    log: Callable[[str], None]

    def gather(self, asked: Sequence[Suite]) -> tuple[SuiteEvidence, ...]:
        """Both models' graded answers to these suites."""
        champion = self.plan.iteration.champion
        before = self._arms("champion", champion, champion, asked)
        after = self._arms("candidate", self.plan.served(), self.plan.candidate.model, asked)
        answered = zip(asked, before, after, strict=True)
        return tuple(SuiteEvidence(suite=suite, arms=(one, other)) for suite, one, other in answered)

    def _arms(self, arm: str, served: ModelRef, model: ModelRef, asked: Sequence[Suite]) -> list[EvalArm]:
        """A model's answers while it is served. They are those of `model`, whatever directory of it is `served`."""
        section, arms = self.plan.section, list[EvalArm]()
        with self.services.engine.open(arm, served) as session:
            respondent = Respondent(served, session, self.services.grader, self.store, self.log)
            harness = LmEvalRun(served, session, section.serving, self.services.lm_eval, self.store, self.log)
            for suite in asked:
                settings = section.suite(suite.name)
                drawn = sampling(section, settings)
                if isinstance(settings, LmEvalSuite):
                    answered = harness.arm(settings, suite, drawn)
                else:
                    answered = respondent.run(suite, drawn)
                arms.append(answered.model_copy(update={"model": model}))
        return arms
