"""The reward model of an iteration: the second asset of the reward stage."""

from datetime import UTC, datetime

import dagster as dg

from assets.loop_asset import loop_asset
from assets.metadata import output, picture, table
from assets.resources import Deployment
from evals.freezing import held_apart
from pipeline.rewards.records import RewardLabels
from pipeline.rewards.reward_model import RewardModelReport, train_reward_model
from pipeline.rewards.reward_model.card import card
from pipeline.selection.consent import consented
from pipeline.selection.pairing import LabelledRow
from pipeline.selection.rated import rated_rows
from pipeline.views import rewards as plots


@loop_asset(
    "assets/reward_model.py",
    "pipeline/rewards/reward_model",
    group_name="rewards",
    kinds={"python", "pytorch"},
    owners=["team:post-training"],
    loads_a_model=True,
    checks={"admitted": "It may score completions, by every figure of the recipe's rule."},
)
def reward_model(context: dg.AssetExecutionContext, deployment: Deployment, reward_labels: RewardLabels):
    """A scorer of completions without a reference, trained on users' thumbs; or the reason why there is none."""
    work = deployment.work(deployment.iteration(reward_labels.iteration), context.log.info)

    def trainable() -> tuple[list[LabelledRow], dict[str, int]]:
        return rated_rows(
            reward_labels.dataset,
            held_apart(work, reward_labels.dataset, datetime.now(UTC)),
            lambda: consented(work.store, work.lake, work.iteration.dataset),
        )

    report: RewardModelReport = train_reward_model(work, reward_labels.dataset, trainable)
    context.log.info(report.reason or f"reward model: AUC {report.auc}, admitted: {report.admitted}")
    yield output(
        report,
        report.model.digest if report.model is not None else "none",
        {
            "trained": report.model is not None,
            "admitted": report.admitted,
            "thumbs": report.counts.thumbs,
            "users": report.counts.users,
            "AUC on held-out users": str(report.auc),
            "calibration": picture(plots.calibration(report), "Scores against the share of thumbs up"),
            "probes": picture(plots.probes(report), "Share of each probe's pairs that are ordered right"),
            "left out": table(["reason", "rows"], sorted(report.counts.left_out.items())),
            "card": dg.MetadataValue.md(card(report)),
            "digest": report.model.digest if report.model is not None else "",
        },
    )
    yield dg.AssetCheckResult(
        check_name="admitted",
        passed=report.admitted or work.recipe.rewards.reward_model is None,
        severity=dg.AssetCheckSeverity.WARN,
        description=report.reason or "; ".join(report.reasons) or "every figure of the rule holds",
    )
