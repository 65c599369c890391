"""The reward stage: labels, the reward model, and the champion's fresh samples with their scores."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.days import LABELLED, labelled_days, tell_of_days
from assets.environment import environment
from assets.loop_asset import loop_asset
from assets.metadata import output, picture, shares, table, table_facts, warning
from assets.resources import Deployment
from evals.freezing import held_apart
from pipeline.core import layout
from pipeline.recipe.rewards import Rewards
from pipeline.rewards.label import label_traces
from pipeline.rewards.records import ABSENT, LABELS, RewardLabels
from pipeline.rewards.reward_model.records import RewardModelReport, Thumb
from pipeline.rewards.reward_model.stage import train_reward_model
from pipeline.selection.draw import SAMPLES, FreshSamples
from pipeline.selection.samples import Scorers, sample
from pipeline.selection.trainable import rated_rows
from pipeline.serving.engines import open_engine
from pipeline.traces.erased import shared_lock
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import consented
from pipeline.views.iteration import reward_distribution


@loop_asset(
    "rewards",
    {"python", "parquet"},
    "pipeline/rewards",
    checks={
        "coverage": "Enough of the traces have a label.",
        "agrees_with_people": "Labels are on the side of people's reviews.",
        "custom_reward_varies": "The recipe's own function tells completions apart.",
    },
)
def reward_labels(context: dg.AssetExecutionContext, deployment: Deployment, traces: GovernedTraces):
    """`final_reward` of every governed trace, with its components and, where there is none, the reason."""
    iteration = traces.iteration
    work = deployment.work(iteration, context.log.info)
    with shared_lock(work.store), deployment.judge(work.recipe.rewards.judge) as judge:
        labels: RewardLabels = label_traces(work, judge, deployment.lineage(iteration))
    context.log.info(
        f"{labels.labelled:,} of {labels.dataset.rows:,} traces labelled, mean reward {labels.mean_reward:.3f}; "
        f"{labels.checked:,} checked now, {labels.remembered:,} known before, {labels.usd:.2f} USD"
    )
    tell_of_days(context, LABELLED, labelled_days(labels))
    yield output(labels, labels.dataset.digest, _metadata(labels))
    yield from _checks(labels, work.recipe.rewards)


def _metadata(labels: RewardLabels) -> dict[str, Any]:
    """What a person looks for: how rewards are spread, what has none and why, what it cost."""
    return {
        "labelled": labels.labelled,
        "coverage": labels.coverage,
        "mean_reward": labels.mean_reward,
        "tokens": labels.tokens,
        "USD": labels.usd,
        "rewards": picture(reward_distribution(labels.histogram, labels.mean_reward), "Histogram of the rewards"),
        "components": table(
            ["component", "values", "mean", "without a value"],
            [
                (name, each.count, "" if each.mean is None else f"{each.mean:.2f}", sum(each.missing.values()))
                for name, each in labels.components.items()
            ],
        ),
        "coverage and reasons": shares({"labelled": labels.labelled, **labels.unlabelled}),
        **table_facts(labels.dataset.rows, labels.dataset.uri, LABELS),
    }


def _checks(labels: RewardLabels, settings: Rewards) -> Iterator[dg.AssetCheckResult]:
    """Warnings: none of them stops the run, each of them is a reason to look before trusting the labels."""
    noise, custom = labels.human_noise, labels.components["custom"]
    yield warning(
        "coverage",
        labels.coverage >= settings.min_coverage,
        f"{labels.coverage:.0%} of the traces have a label; the floor is {settings.min_coverage:.0%}",
    )
    yield warning(
        "agrees_with_people",
        noise.high is not None and noise.high <= settings.max_human_noise,
        f"Share of reviewed labels on whose side people disagree: {noise}; its upper bound may be "
        f"{settings.max_human_noise:.2f}. Reviews are asked for by: pt reviews write",
    )
    if settings.custom is None:
        yield warning("custom_reward_varies", True, "The recipe names no function of its own.")
        return
    failed = {reason: rows for reason, rows in custom.missing.items() if reason != ABSENT}
    reasons = ", ".join(f"{rows:,} {reason}" for reason, rows in failed.items()) or "none"
    yield warning(
        "custom_reward_varies",
        custom.distinct > 1 or custom.count + sum(failed.values()) == 0,
        f"The recipe's own function gave {custom.count:,} completions {custom.distinct:,} different values; one that "
        f"scores everything alike teaches nothing. Without a value: {reasons}; the label table's column custom_detail "
        "says why",
    )


@loop_asset(
    "rewards",
    {"python", "pytorch"},
    "pipeline/rewards/reward_model",
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

    report: RewardModelReport = train_reward_model(work, trainable)
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
            "probes": table(
                ["probe", "ordered right", "passes"],
                [(each.name, each.ordered_right, each.passes) for each in report.probes],
            ),
        },
    )
    yield warning(
        "admitted",
        report.admitted or work.recipe.rewards.reward_model is None,
        report.reason or "; ".join(report.reasons) or "every figure of the rule holds",
    )


@loop_asset("rewards", {"python", "parquet"}, "pipeline/selection/samples")
def samples(
    context: dg.AssetExecutionContext,
    deployment: Deployment,
    reward_labels: RewardLabels,
    reward_model: RewardModelReport,
):
    """Fresh completions of the champion to logged prompts, each scored; none where the recipe has no such section."""
    work = deployment.work(deployment.iteration(reward_labels.iteration), context.log.info)
    store, iteration, configured = work.store, work.iteration, work.recipe.rewards.reward_model is not None
    serving_folder = store.path(layout.SAMPLE_SERVING)
    with deployment.judge(work.recipe.rewards.judge if work.recipe.samples is not None else None) as judge:
        fresh: FreshSamples = sample(
            work,
            reward_labels.dataset,
            lambda: held_apart(work, reward_labels.dataset, datetime.now(UTC)),
            lambda: consented(store, work.lake, iteration.dataset),
            lambda section: open_engine(
                section.serving, environment().serving, work.log, serving_folder, where="samples.serving"
            ),
            Scorers(judge, deployment.lineage(iteration), reward_model if configured else None),
        )
    if fresh.dataset is None:
        yield output(fresh, "none", {"samples": "none: the recipe has no section `samples`"})
        return
    context.log.info(
        f"{fresh.prompts:,} prompts, {fresh.drawn + fresh.remembered:,} completions ({fresh.drawn:,} drawn now), mean "
        f"reward {fresh.mean_reward:.3f}, best of each {fresh.best_reward:.3f}; {fresh.usd:.2f} USD"
    )
    metadata = {
        "prompts": fresh.prompts,
        "labelled": fresh.labelled,
        "mean_reward": fresh.mean_reward,
        "best of each prompt": fresh.best_reward,
        "USD": fresh.usd,
        "rewards": picture(reward_distribution(fresh.histogram, fresh.mean_reward), "Rewards of the samples"),
        "coverage and reasons": shares({"scored": fresh.labelled, **fresh.unlabelled}),
        **table_facts(fresh.dataset.rows, fresh.dataset.uri, SAMPLES),
    }
    yield output(fresh, fresh.dataset.digest, metadata)
