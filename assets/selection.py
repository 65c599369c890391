"""The selection stage: preference data, and the choice of method."""

from datetime import UTC, datetime

import dagster as dg

from assets.cluster import launchable, refuse_unlaunchable
from assets.loop_asset import loop_asset
from assets.metadata import output, table, warning
from assets.resources import Deployment
from evals.freezing import held_apart
from evals.suites import asked_by
from pipeline.core import layout
from pipeline.rewards.records import RewardLabels
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.selection.draw import FreshSamples
from pipeline.selection.preferences import PreferenceDataset, ScoredSamples, build
from pipeline.selection.samples import metadata_of
from pipeline.traces.scope import consented
from pipeline.training.plan import TrainingPlan, plan_training
from pipeline.views.iteration import EVIDENCE, decision_sentence, evidence_rows


@loop_asset("selection", {"python", "parquet"}, "pipeline/selection")
def preference_dataset(
    context: dg.AssetExecutionContext,
    deployment: Deployment,
    reward_labels: RewardLabels,
    reward_model: RewardModelReport,
    samples: FreshSamples,
):
    """Pairs, prompts, thumbs and winners, from consented labels, without anything that an evaluation asks."""
    work = deployment.work(deployment.iteration(reward_labels.iteration), context.log.info)
    dataset: PreferenceDataset = build(
        work,
        reward_labels.dataset,
        held_apart(work, reward_labels.dataset, datetime.now(UTC)),
        lambda: consented(work.store, work.lake, work.iteration.dataset),
        reward_labels.human_noise,
        ScoredSamples(samples.dataset, reward_model if work.recipe.rewards.reward_model is not None else None),
    )
    context.log.info(f"{dataset.pairs.rows:,} pairs and {dataset.prompts.rows:,} prompts")
    tables = (dataset.pairs, dataset.prompts, dataset.thumbs, dataset.winners)
    yield output(
        dataset,
        [each.digest for each in tables if each is not None],
        {
            "pairs": dataset.pairs.rows,
            "prompts": dataset.prompts.rows,
            "thumbs": dataset.evidence.thumbs,
            "winners": dataset.evidence.winners,
            "without consent": dataset.without_consent,
            "contaminated": dataset.contamination.hits,
        },
    )


@loop_asset(
    "selection",
    {"python"},
    "pipeline/selection",
    "pipeline/recipe/method.py",
    "pipeline/recipe/methods.py",
    "pipeline/training/plan.py",
    checks={
        "enough_signal": "A method has the evidence that it needs.",
        "launchable": "What the lint of the gang, the budget and the gate's suite say, before anything is paid for.",
    },
)
def training_plan(context: dg.AssetExecutionContext, deployment: Deployment, preference_dataset: PreferenceDataset):
    """The method or "not now", with the reasons, and the exact rows that the training will consume."""
    work = deployment.work(deployment.iteration(preference_dataset.iteration), context.log.info)
    store, iteration, recipe = work.store, work.iteration, work.recipe
    plan: TrainingPlan = plan_training(
        work,
        preference_dataset,
        lambda: consented(store, work.lake, iteration.dataset),
        lambda trace_ids: metadata_of(work, trace_ids),
    )
    decision = plan.decision
    context.log.info(f"method {decision.method.upper()}: {'; '.join(decision.reasons)}")
    yield output(
        plan,
        plan.digest() if plan.data is not None else "none",
        {
            "method": decision.method,
            "why": decision_sentence(decision),
            "without consent": plan.without_consent,
            "evidence": table(EVIDENCE, evidence_rows(decision)),
        },
    )
    yield warning("enough_signal", decision.method != "none", "; ".join(decision.reasons))
    plan_path = store.path(iteration.path(layout.PLAN))
    may_launch = launchable(recipe, plan, plan_path, lambda: asked_by(store, recipe.evaluation, iteration))
    yield may_launch
    refuse_unlaunchable(may_launch)
