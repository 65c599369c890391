"""The evaluation stage: what the candidate can do, and whether it may go on."""

from contextlib import closing

import dagster as dg

from assets.cluster import evaluate_on_cluster
from assets.environment import environment
from assets.loop_asset import loop_asset
from assets.metadata import output, picture, warning
from assets.observations import refuse_blocked
from assets.resources import Deployment
from evals import report
from evals.evaluate import EvalServices, decide, evaluate, inference, publish_plan
from evals.freezing import withdraw
from evals.gate import GateVerdict, Verdict
from evals.records import EvalPlan, EvalReport
from pipeline.core.markdown import literal
from pipeline.rewards.verifiers import Grader
from pipeline.traces.context import IterationContext
from pipeline.training.result import TrainingResult


@loop_asset("evaluation", {"python"}, "evals")
def eval_report(context: dg.AssetExecutionContext, deployment: Deployment, policy_checkpoint: TrainingResult):
    """Champion and candidate on the same held-out items, paired, with every output kept as evidence."""
    if policy_checkpoint.health.verdict == "STOP":
        raise dg.Failure("The training stopped itself: there is no candidate to evaluate.", allow_retries=False)
    iteration = deployment.iteration(policy_checkpoint.iteration)
    refuse_blocked(deployment, iteration)
    work = deployment.work(iteration, context.log.info)
    plan = EvalPlan(
        iteration=work.iteration,
        section=work.recipe.evaluation,
        verifier=work.recipe.rewards.verifier,
        candidate=policy_checkpoint.checkpoint,
        judge=work.recipe.gate_judge,
        lineage=tuple(sorted(deployment.lineage(work.iteration))),
    )
    publish_plan(work.store, plan)
    withdraw(work)
    if work.recipe.compute.evaluation is None:
        result = _evaluate_here(deployment, work, plan)
    else:
        result = evaluate_on_cluster(context, deployment, plan)
    compared = result.target().comparison
    shown = {"report": dg.MetadataValue.md(report.table(result))}
    if compared is not None:
        shown |= {
            "accuracy before": compared.champion.value,
            "accuracy after": compared.candidate.value,
            "difference": compared.difference.value,
            "intervals": picture(report.picture(result), "Scores and paired differences with intervals"),
        }
    yield output(result, result.bundle.digest, shown)


def _evaluate_here(deployment: Deployment, work: IterationContext, plan: EvalPlan) -> EvalReport:
    log = work.log
    with (
        inference(work.store, plan.section, environment().serving, log) as engine,
        closing(Grader(plan.verifier)) as check,
        deployment.judge(plan.judge) as judge,
    ):
        return evaluate(work.store, plan, EvalServices(engine, check, judge), log)


@loop_asset("evaluation", {"python"}, "evals", checks={"candidate_is_better": "The verdict is PASS."})
def gate_verdict(context: dg.AssetExecutionContext, deployment: Deployment, eval_report: EvalReport):
    """PASS, FAIL or INCONCLUSIVE with the reasons, bound to the evidence and the weights."""
    iteration = deployment.iteration(eval_report.iteration)
    refuse_blocked(deployment, iteration)
    verdict: GateVerdict = decide(deployment.work(iteration, context.log.info), eval_report)
    context.log.info(f"verdict {verdict.sentence}")
    yield output(
        verdict,
        [verdict.verdict, verdict.candidate.digest, verdict.report_digest, verdict.bundle_digest],
        {
            "verdict": str(verdict.verdict),
            "reasons": dg.MetadataValue.md("\n".join(f"- {literal(reason)}" for reason in verdict.reasons)),
        },
    )
    yield warning("candidate_is_better", verdict.verdict is Verdict.PASS, verdict.sentence)
