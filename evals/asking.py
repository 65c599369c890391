"""Asking both models: the champion whole, the candidate in looks, so that a hopeless one is not asked to the end.

Owns the order of what is asked. Refuses to say when there is no hope (futility.py), and to ask anything twice: what is
in the journal (runner.py) is there for every later look, gate and attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from evals.bundle import SuiteEvidence
from evals.futility import SHARES, part, stoppable, stopped
from evals.libraries.runs import LibraryRun
from evals.measurements import FutilityStop
from evals.plan import EvalPlan
from evals.results import EvalArm
from evals.runner import Respondent, sampling
from evals.services import EvalServices
from evals.suites import Item, Suite
from pipeline.recipe.suites import LibrarySuite
from pipeline.storage import ModelRef, Store

Ask = Callable[[Suite, Sequence[Item] | None], EvalArm]
"""One model's graded answers to a suite, or to some of its items."""


class ModelRuns(NamedTuple):
    """What both models of an evaluation are asked with."""

    store: Store
    plan: EvalPlan
    services: EvalServices
    log: Callable[[str], None]
    confirming: Sequence[str] = ()
    """Names of the suites of the second step, on which the levels of the first depend."""

    def gather(self, asked: Sequence[Suite]) -> tuple[tuple[SuiteEvidence, ...], FutilityStop | None]:
        """Both models' answers to these suites; where asking was stopped, to the targets as far as they were asked."""
        champion = self.plan.iteration.champion
        with self._open("champion", champion, champion) as ask:
            before = {suite.name: ask(suite, None) for suite in asked}
        with self._open("candidate", self.plan.served(), self.plan.candidate.model) as ask:
            looked_at, stop = self._look(ask, asked, before)
            if stop is not None:
                return looked_at, stop
            early = {each.suite.name: each.arms[1] for each in looked_at}
            after = [_rest(ask, suite, early.get(suite.name)) for suite in asked]
        pairs = zip(asked, after, strict=True)
        return tuple(SuiteEvidence(suite=suite, arms=(before[suite.name], arm)) for suite, arm in pairs), None

    def _look(
        self, ask: Ask, asked: Sequence[Suite], before: Mapping[str, EvalArm]
    ) -> tuple[tuple[SuiteEvidence, ...], FutilityStop | None]:
        """Ask the targets in looks until one stops; what was asked of them until then."""
        section, so_far = self.plan.section, dict[str, SuiteEvidence]()
        targets = stoppable(section, asked)
        for look in range(1, len(SHARES) + 1):
            current: list[SuiteEvidence] = []
            for suite in targets:
                if items := part(suite, look, section.seed):
                    earlier = so_far[suite.name].arms[1] if suite.name in so_far else None
                    arms = _only(before[suite.name], items), _rest(ask, suite, earlier, items)
                    current.append(SuiteEvidence(suite=suite, arms=arms))
            so_far |= {each.suite.name: each for each in current}
            if stop := stopped([(each.suite, each.arms) for each in current], section, self.confirming):
                return tuple(current), stop
        return tuple(so_far.values()), None

    @contextmanager
    def _open(self, arm: str, served: ModelRef, model: ModelRef) -> Generator[Ask]:
        """A model while it is served. Its answers are those of `model`, whatever directory of it is `served`."""
        section = self.plan.section
        with self.services.engine.open(arm, served) as session:
            respondent = Respondent(served, session, self.services.grader, self.store, self.log)
            library = LibraryRun(served, session, section.serving, self.services.libraries, self.store, self.log)

            def ask(suite: Suite, items: Sequence[Item] | None) -> EvalArm:
                settings = section.suite(suite.name)
                drawn = sampling(section, settings)
                if isinstance(settings, LibrarySuite):
                    answered = library.arm(settings, suite, drawn)
                else:
                    answered = respondent.run(suite, drawn, items)
                return answered.model_copy(update={"model": model})

            yield ask


def _rest(ask: Ask, suite: Suite, earlier: EvalArm | None, items: Sequence[Item] | None = None) -> EvalArm:
    """The answers to these items, or all, of which the `earlier` ones are graded already. In the suite's order."""
    if earlier is None:
        return ask(suite, items)
    graded = {result.id: result for result in earlier.results}
    rest = [item for item in items or suite.items if item.id not in graded]
    graded |= {result.id: result for result in ask(suite, rest).results}
    return earlier.model_copy(update={"results": tuple(graded[item.id] for item in items or suite.items)})


def _only(arm: EvalArm, items: Sequence[Item]) -> EvalArm:
    chosen = {item.id for item in items}
    return arm.model_copy(update={"results": tuple(each for each in arm.results if each.id in chosen)})
