"""The reward stage: labels, and the reward model."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from assets.days import LABELLED, labelled_days, tell_of_days
from assets.loop_asset import loop_asset
from assets.metadata import output, picture, table, table_facts
from assets.resources import Deployment
from evals.freezing import held_apart
from pipeline.core import layout
from pipeline.demo.desk.judge_process import judge_at
from pipeline.recipe.rewards import Rewards
from pipeline.rewards.examples import examples, page
from pipeline.rewards.label import label_traces
from pipeline.rewards.records import LABELS, LabelSample, RewardLabels
from pipeline.rewards.reward_model import RewardModelReport, train_reward_model
from pipeline.rewards.reward_model.thumbs import Thumb
from pipeline.selection.consent import consented
from pipeline.selection.trainable import rated_rows
from pipeline.traces.erased import shared_lock
from pipeline.traces.records import GovernedTraces
from pipeline.views import rewards as plots


@loop_asset(
    "rewards",
    {"python", "parquet"},
    "pipeline/rewards",
    checks={
        "coverage": "Enough of the traces have a label.",
        "agrees_with_people": "Labels rank answers as people's reviews do.",
        "distribution_is_stable": "Rewards are spread as in the iteration before.",
        "custom_reward_varies": "The recipe's own function tells completions apart.",
    },
)
def reward_labels(context: dg.AssetExecutionContext, deployment: Deployment, traces: GovernedTraces):
    """`final_reward` of every governed trace, with its components and, where there is none, the reason."""
    iteration = traces.iteration
    work = deployment.work(iteration, context.log.info)
    endpoint, settings = deployment.judge_endpoint(), work.recipe.rewards.judge
    folder = work.store.path(layout.JUDGE_SERVER)
    with shared_lock(work.store), judge_at(settings, endpoint, folder) as judge:
        labels: RewardLabels = label_traces(work, judge, deployment.lineage(iteration))
    context.log.info(
        f"{labels.labelled:,} of {labels.dataset.rows:,} traces labelled, mean reward {labels.mean_reward:.3f}; "
        f"{labels.checked:,} checked now, {labels.remembered:,} known before, {labels.usd:.2f} USD"
    )
    shown = examples(labels.dataset)
    tell_of_days(context, work.recipe.key_prefix, LABELLED, labelled_days(labels))
    yield output(labels, labels.dataset.digest, _metadata(labels, shown, page(work.store, iteration, shown)))
    yield from _checks(labels, work.recipe.rewards)


def _metadata(labels: RewardLabels, shown: Sequence[LabelSample], page: Path) -> dict[str, Any]:
    """What a person looks for: how rewards are spread, what has none and why, who agrees with whom, what it cost."""
    return {
        "labelled": labels.labelled,
        "coverage": labels.coverage,
        "mean_reward": labels.mean_reward,
        "tokens": labels.tokens,
        "USD": labels.usd,
        "rewards": picture(plots.reward_distribution(labels.histogram, labels.mean_reward), "Histogram of the rewards"),
        "components": picture(plots.component_histograms(labels.components), "Histogram of each component"),
        "coverage and reasons": picture(plots.coverage(labels.labelled, labels.unlabelled), "Labelled, and why not"),
        "agreement": picture(plots.agreement_matrix(labels.agreement), "Agreement between components"),
        "labels, for example": table(
            ["reward", "why"], [("none" if s.final_reward is None else f"{s.final_reward:.2f}", s.why) for s in shown]
        ),
        "their texts": dg.MetadataValue.path(page),
        **table_facts(labels.dataset.rows, labels.dataset.uri, LABELS),
    }


def _checks(labels: RewardLabels, settings: Rewards) -> Iterator[dg.AssetCheckResult]:
    """Warnings: none of them stops the run, each of them is a reason to look before trusting the labels."""

    def warned(name: str, passed: bool, description: str) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            check_name=name, passed=passed, severity=dg.AssetCheckSeverity.WARN, description=description
        )

    rho, floor, drift, custom = (
        labels.humans.rank_correlation, settings.min_rank_correlation, labels.drift, labels.custom
    )  # fmt: skip
    yield warned(
        "coverage",
        labels.coverage >= settings.min_coverage,
        f"{labels.coverage:.0%} of the traces have a label; the floor is {settings.min_coverage:.0%}",
    )
    yield warned(
        "agrees_with_people",
        rho.low is not None and rho.low >= floor,
        f"Spearman's rho between reward and {labels.humans.reviews} reviews: {rho}; its lower bound has to reach "
        f"{floor:.2f}. Reviews are asked for by: pt reviews write",
    )
    yield warned(
        "distribution_is_stable",
        drift is None or drift.stability_index <= settings.max_drift,
        "The first iteration: there is nothing to compare with."
        if drift is None
        else f"Population stability index {drift.stability_index:.3f} against iteration {drift.against}, mean "
        f"{drift.mean_change:+.3f}; the recipe allows {settings.max_drift:.2f}",
    )
    failed = {} if custom is None else custom.failed
    reasons = ", ".join(f"{rows:,} {reason}" for reason, rows in sorted(failed.items())) or "none"
    yield warned(
        "custom_reward_varies",
        custom is None or custom.distinct > 1 or custom.scored + sum(failed.values()) == 0,
        "The recipe names no function of its own."
        if custom is None
        else f"The recipe's own function gave {custom.scored:,} completions {custom.distinct:,} different values; one "
        f"that scores everything alike teaches nothing. Without a value: {reasons}; the label table's column "
        "custom_detail says why",
    )


@loop_asset(
    "rewards",
    {"python", "pytorch"},
    "pipeline/rewards/reward_model",
    loads_a_model=True,
    checks={"admitted": "It may score completions, by every figure of the recipe's rule."},
)
def reward_model(context: dg.AssetExecutionContext, deployment: Deployment, reward_labels: RewardLabels):
    """A scorer of completions without a reference, trained on users' thumbs; or the reason why there is none."""
    work = deployment.work(deployment.iteration(reward_labels.iteration), context.log.info)

    def trainable() -> tuple[list[Thumb], dict[str, int]]:
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
            "report": dg.MetadataValue.json(report.model_dump(mode="json", exclude={"calibration"})),
        },
    )
    yield dg.AssetCheckResult(
        check_name="admitted",
        passed=report.admitted or work.recipe.rewards.reward_model is None,
        severity=dg.AssetCheckSeverity.WARN,
        description=report.reason or "; ".join(report.reasons) or "every figure of the rule holds",
    )
