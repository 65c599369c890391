"""The two stages: `evaluate` gathers evidence on a candidate, `decide` judges it. Both are no-ops when run again.

Owns their order and what they publish below a prefix: `eval_report.json`, `gate_verdict.json`, and the bundle
`evidence/`. Refuses everything else.
"""

from __future__ import annotations

from collections.abc import Callable

from evals import bundle, gate, runner
from evals.comparison import EvalReport
from evals.gate import GateVerdict
from evals.runner import Grader, sampling
from evals.suites import suite
from pipeline import layout
from pipeline.serving.sample import Server
from pipeline.storage import ModelRef
from pipeline.traces.context import IterationContext

Log = Callable[[str], None]


def evaluate(context: IterationContext, candidate: ModelRef, serve: Server, grader: Grader) -> EvalReport:
    """Run the champion and the candidate over the suite, and publish the evidence and its report.

    Bad data is in the report's problems. Raises ValueError when a published bundle was altered or the suite's file
    cannot be read, and whatever `serve` raises when a model cannot be served.
    """
    store, iteration, section, log = context.store, context.iteration, context.recipe.evaluation, context.log
    name = iteration.path(layout.EVIDENCE)

    def make() -> EvalReport:
        if not store.path(name).is_dir():
            items, plan = suite(store, section), sampling(section)
            log(f"evaluation: {len(items.items)} items, {plan.samples} samples of each, champion first")
            before = runner.run(iteration.champion, items, plan, serve, grader)
            log(f"evaluation: champion done, candidate {candidate.digest[:12]} next")
            after = runner.run(candidate, items, plan, serve, grader)
            bundle.publish(store, name, bundle.evidence(iteration.id, section, items, before, after))
        report = bundle.recompute(store.path(name))
        log(f"evaluation: {summary(report)}")
        return report

    return store.once(iteration.path(layout.EVAL_REPORT), EvalReport, make)


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


def summary(report: EvalReport) -> str:
    """One line for the log."""
    compared = report.measurement.comparison
    if compared is None:
        return f"no comparison: {'; '.join(report.measurement.problems)}"
    gain = compared.difference
    return (
        f"accuracy {compared.champion.value:.1%} -> {compared.candidate.value:.1%}, "
        f"difference {gain.value:+.1%} (95% CI {gain.low:+.1%} to {gain.high:+.1%})"
    )
