"""The reward stage."""

import dagster as dg

from assets import pictures
from assets.resources import Deployment
from pipeline.rewards.label import COLUMNS, RewardLabels, label_traces
from pipeline.traces.erased import publishing
from pipeline.traces.materialize import read
from pipeline.traces.records import GovernedTraces


@dg.asset(
    group_name="rewards",
    kinds={"python", "parquet"},
    owners=["team:post-training"],
    check_specs=[dg.AssetCheckSpec("coverage", asset="reward_labels")],
)
def reward_labels(context: dg.AssetExecutionContext, deployment: Deployment, traces: GovernedTraces):
    """`final_reward` of every governed trace, with its components and, where there is none, the reason."""
    weights, store = deployment.recipe().rewards, deployment.store()
    with publishing(store):
        rows = read(store, deployment.lake(), traces.iteration.dataset, COLUMNS)
        labels: RewardLabels = label_traces(store, traces.iteration, rows, weights, context.log.info)
    context.log.info(
        f"{labels.labelled} of {labels.dataset.rows} traces labelled, mean reward {labels.mean_reward:.3f}"
    )
    yield dg.Output(
        labels,
        metadata={
            "labelled": labels.labelled,
            "coverage": labels.coverage,
            "mean_reward": labels.mean_reward,
            "rewards": pictures.shown(
                pictures.reward_distribution(labels.histogram, labels.mean_reward), "Histogram of final_reward"
            ),
            "outcomes": pictures.table(["outcome", "traces"], sorted(labels.outcomes.items())),
            "without a label": pictures.table(["reason", "traces"], sorted(labels.unlabelled.items())),
            "digest": labels.dataset.digest,
            "uri": dg.MetadataValue.path(labels.dataset.uri),
        },
    )
    yield dg.AssetCheckResult(
        check_name="coverage",
        passed=labels.coverage >= weights.min_coverage,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{labels.coverage:.0%} of the traces have a label; the recipe asks for {weights.min_coverage:.0%}",
        metadata={"coverage": labels.coverage, "floor": weights.min_coverage},
    )
