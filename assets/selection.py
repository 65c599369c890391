"""The selection stage: preference data, and the choice of method."""

import dagster as dg

from assets import pictures
from assets.resources import Deployment
from evals.suites import held_out_prompts
from pipeline.rewards.label import RewardLabels
from pipeline.selection.preferences import PreferenceDataset, build
from pipeline.training.plan import TrainingPlan, plan_training


@dg.asset(group_name="selection", kinds={"python", "parquet"}, owners=["team:post-training"])
def preference_dataset(context: dg.AssetExecutionContext, deployment: Deployment, reward_labels: RewardLabels):
    """Pairs for DPO and prompts for GRPO from the labelled traces, without held-out questions."""
    recipe, iteration = deployment.recipe(), deployment.iteration(reward_labels.iteration)
    dataset: PreferenceDataset = build(
        deployment.store(), iteration, reward_labels.dataset, recipe.selection, held_out_prompts(recipe.evaluation)
    )
    context.log.info(f"{dataset.pairs.rows} pairs and {dataset.prompts.rows} prompts")
    yield dg.Output(
        dataset,
        metadata={
            "pairs": dataset.pairs.rows,
            "prompts": dataset.prompts.rows,
            "contaminated": dataset.contaminated,
            "capped_pairs": dataset.capped_pairs,
            "evidence": pictures.table(["evidence", "value"], _rounded(dataset.evidence.model_dump())),
            "pairs uri": dg.MetadataValue.path(dataset.pairs.uri),
            "prompts uri": dg.MetadataValue.path(dataset.prompts.uri),
        },
    )


@dg.asset(
    group_name="selection",
    kinds={"python"},
    owners=["team:post-training"],
    check_specs=[dg.AssetCheckSpec("enough_signal", asset="training_plan")],
)
def training_plan(context: dg.AssetExecutionContext, deployment: Deployment, preference_dataset: PreferenceDataset):
    """GRPO, DPO or "not now", with the reasons, and the exact rows that the training will consume."""
    recipe, iteration = deployment.recipe(), deployment.iteration(preference_dataset.iteration)
    plan: TrainingPlan = plan_training(
        deployment.store(), iteration, preference_dataset, recipe.selection, recipe.training, recipe.rewards
    )
    decision = plan.decision
    context.log.info(f"method {decision.method.upper()}: {'; '.join(decision.reasons)}")
    lacks = [(name.upper(), "; ".join(why)) for name, why in decision.lacks.items()]
    yield dg.Output(
        plan,
        metadata={
            "method": decision.method,
            "forced": decision.forced,
            "reasons": dg.MetadataValue.md("\n".join(f"- {reason}" for reason in decision.reasons)),
            "what the others lacked": pictures.table(["method", "lacks"], lacks),
            "settings": dg.MetadataValue.json(plan.algorithm.model_dump(mode="json") if plan.algorithm else {}),
        },
    )
    yield dg.AssetCheckResult(
        check_name="enough_signal",
        passed=decision.method != "none",
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(decision.reasons),
    )


def _rounded(fields: dict[str, float]) -> list[tuple[str, str]]:
    return [(name, f"{value:.3f}" if isinstance(value, float) else f"{value:,}") for name, value in fields.items()]
