"""The two stages: `evaluate` publishes `eval_report.json` and the bundle `evidence/`, `decide` `gate_verdict.json`.
Both do nothing when run again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import NamedTuple

from evals import bundle, gate, ledger
from evals.bundle import EvalEvidence, SuiteEvidence
from evals.gate import GateVerdict
from evals.judged import generation, judge_suites
from evals.records import EvalArm, EvalPlan, EvalReport, JudgedMeasurement, SuiteMeasurement, Trial
from evals.runner import Grader, Respondent, sampling
from evals.suites import Suite, asked_by, frozen, not_asked, pin
from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import TracesSuite
from pipeline.serving.endpoint import Endpoint, ServingAddresses
from pipeline.serving.engines import open_engine
from pipeline.serving.inference import InferenceEngine
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import held_lock

Log = Callable[[str], None]


class EvalServices(NamedTuple):
    """What answers, grades and judges while an evaluation runs. `judge`: where the judge listens; None without judged
    suites."""

    engine: InferenceEngine
    grader: Grader
    judge: Endpoint | None = None


def evaluate(store: Store, plan: EvalPlan, services: EvalServices, log: Log) -> EvalReport:
    """Run the champion and the candidate over the plan's suites, and publish the evidence and its report.

    Bad data is in the report's problems. Raises ValueError when a published bundle was altered, a suite cannot be read
    or a model or the judge cannot be asked, and whatever the engine raises when a model cannot be served.
    """
    section, name = plan.section, plan.path(layout.EVIDENCE)

    def gather() -> None:
        asked = asked_by(store, section, plan.iteration)
        evidence = EvalEvidence(
            iteration=plan.iteration.id,
            section=section,
            champion=plan.iteration.champion,
            candidate=plan.candidate.model,
            not_asked=not_asked(store, plan.iteration),
            problems=unpinned(store, plan, asked) or emptied(store, section),
        )
        if not evidence.problems:
            trial, changed = _entered(store, plan, asked)
            evidence = evidence.model_copy(update={"trial": trial, "problems": changed})
        if not evidence.problems:  # else no answer could be of use, and none is paid for
            log(f"evaluation: {', '.join(f'{each.name} ({len(each.items):,} items)' for each in asked)}")
            asker = Asker(store, section, services, log, evidence.trial.seed)
            answered = asker.both(plan.iteration.champion, plan.candidate.model, asked)
            judged = judge_suites(store, plan, services.judge, answered, log)
            evidence = evidence.model_copy(update={"suites": answered, "judged": judged})
        bundle.publish(store, name, evidence)

    def make() -> EvalReport:
        if not store.path(name).is_dir():
            from_traces = any(isinstance(each, TracesSuite) for each in section.suites)
            with held_lock(store) if from_traces else nullcontext():  # nobody is forgotten while they are quoted
                gather()
        report = bundle.recompute(store.path(name))
        for line in summary(report):
            log(f"evaluation: {line}")
        return report

    return store.once(plan.path(layout.EVAL_REPORT), EvalReport, make)


class Asker(NamedTuple):
    """Asks models the suites of a section, and keeps their answers below the store."""

    store: Store
    section: Evaluation
    services: EvalServices
    log: Log
    seed: int
    """Of all answers."""

    def arms(self, part: str, model: ModelRef, asked: Sequence[Suite]) -> list[EvalArm]:
        """One model's graded answers. `part`: champion or candidate, which an endpoint serves by a name each."""
        with self.services.engine.open(part, model) as session:
            respondent = Respondent(model, session, self.services.grader, self.store, self.log)
            return [
                respondent.run(suite, sampling(self.section, self.section.suite(suite.name), self.seed))
                for suite in asked
            ]

    def both(self, champion: ModelRef, candidate: ModelRef, asked: Sequence[Suite]) -> tuple[SuiteEvidence, ...]:
        """Both models' graded answers, the champion asked first."""
        before, after = self.arms("champion", champion, asked), self.arms("candidate", candidate, asked)
        answered = zip(asked, before, after, strict=True)
        return tuple(SuiteEvidence(suite=suite, arms=(one, other)) for suite, one, other in answered)


def _entered(store: Store, plan: EvalPlan, asked: tuple[Suite, ...]) -> tuple[Trial, tuple[str, ...]]:
    """Enter the gate into the ledger before anything is asked: its level and seed, and why it may not pass."""
    targets = [each for each in asked if plan.section.suite(each.name).role == "target"]
    by_name = {each.name: each for each in asked}
    judged = [each for each in plan.section.judged if each.role == "target"]
    targets += [generation(each, by_name[each.over], plan.judge) for each in judged]
    trial, changed = ledger.enter(store, plan, targets, datetime.now(UTC))
    return trial, tuple(changed)


def unpinned(store: Store, plan: EvalPlan, asked: tuple[Suite, ...]) -> tuple[str, ...]:
    """The suites that are not those that the training data was cleaned of."""
    pins = pin(store, plan.path(), asked).digests
    return tuple(
        f"{each.name}: its items are not those that the training data was cleaned of (digest {each.identity()[:12]}, "
        f"then {pins.get(each.name, 'none')[:12]}): put the file back, or begin a new iteration"
        for each in asked
        if pins.get(each.name) != each.identity()
    )


def emptied(store: Store, section: Evaluation) -> tuple[str, ...]:
    """The suites that gate and have lost too much of what was frozen."""
    listed = [each.name for each in section.asked if isinstance(each, TracesSuite) and each.name in section.gating]
    read = ((name, newest) for name in listed if (newest := frozen.latest(store, name)) is not None)
    return tuple(
        f"{name}: erasure emptied {newest.emptied:.1%} of the clusters of generation {newest.generation.number}, above "
        f"{frozen.MAX_EMPTIED_SHARE:.0%}: begin a new iteration, which freezes a new generation"
        for name, newest in read
        if newest.is_emptied
    )


def decide(context: IterationContext, report: EvalReport) -> GateVerdict:
    """Judge a report and publish the verdict.

    Raises ValueError when the published evidence is not the one that the report was made from.
    """

    store, prefix = context.store, context.path()

    def make() -> GateVerdict:
        recomputed = bundle.recompute(store.path(prefix, layout.EVIDENCE))
        if recomputed.digest() != report.digest():
            raise ValueError(
                f"The evidence below {prefix} does not support this report (digest {recomputed.digest()}, "
                f"not {report.digest()}). Move {prefix}/{layout.EVAL_REPORT} away and evaluate again."
            )
        return gate.judge(report, context.recipe.evaluation)

    return store.once(context.path(layout.GATE_VERDICT), GateVerdict, make)


def summary(report: EvalReport) -> Iterator[str]:
    """A line for each suite and slice, for the log."""
    for each in (*report.measurements, *report.judged):
        if each.problems:
            yield f"{each.suite}: nothing to compare: {'; '.join(each.problems)}"
        elif isinstance(each, SuiteMeasurement) and (compared := each.comparison) is not None:
            gain = compared.difference
            yield (
                f"{each.suite}: accuracy {compared.champion.value:.1%} -> {compared.candidate.value:.1%}, "
                f"difference {gain.value:+.1%} (95% CI {gain.low:+.1%} to {gain.high:+.1%})"
            )
            for row in compared.slices if len(compared.slices) > 1 else ():
                scores = f"{row.champion.value:.1%} -> {row.candidate.value:.1%}"
                yield f"{each.suite}, {row.name or '(none)'}: {row.items} items, accuracy {scores}"
        elif isinstance(each, JudgedMeasurement) and (rate := each.win_rate) is not None:
            gain = rate.controlled
            yield (
                f"{each.suite}: preferred in {0.5 + gain.value:.1%} of {rate.pairs} pairs at equal lengths "
                f"(95% CI {0.5 + gain.low:.1%} to {0.5 + gain.high:.1%}), {0.5 + rate.raw.value:.1%} as judged"
            )


def inference(
    store: Store, section: Evaluation, addresses: ServingAddresses, log: Callable[[str], None]
) -> AbstractContextManager[InferenceEngine]:
    """What answers this section's questions; what it started ends with the block."""
    return open_engine(section.serving, addresses, log, store.path(layout.SERVING))


def publish_plan(store: Store, plan: EvalPlan) -> str:
    """Write the plan where `python -m evals answer` reads it; its name below the root. The one that stands is replaced:
    where and how it runs may have changed."""
    name = plan.path(layout.EVAL_PLAN)
    store.write(name, plan)
    return name
