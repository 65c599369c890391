"""The stage of fresh samples: what the champion answers to logged prompts now, and what scorers make of it."""

from datetime import UTC, datetime

import dagster as dg

from assets.environment import environment
from assets.loop_asset import loop_asset
from assets.metadata import output, picture, table_facts
from assets.resources import Deployment
from evals.freezing import held_apart
from pipeline.core import layout
from pipeline.demo.desk.judge_process import judge_at
from pipeline.rewards.records import RewardLabels
from pipeline.rewards.reward_model import RewardModelReport
from pipeline.selection.consent import consented
from pipeline.selection.samples.records import SAMPLES, FreshSamples
from pipeline.selection.samples.stage import Scorers, sample
from pipeline.serving.engines import open_engine
from pipeline.views import rewards as plots


@loop_asset(
    "rewards",
    {"python", "parquet"},
    "pipeline/selection/samples",
    loads_a_model=True,
)
def samples(
    context: dg.AssetExecutionContext,
    deployment: Deployment,
    reward_labels: RewardLabels,
    reward_model: RewardModelReport,
):
    """Fresh completions of the champion to logged prompts, each scored; none where the recipe has no such section."""
    work = deployment.work(deployment.iteration(reward_labels.iteration), context.log.info)
    store, iteration, configured = work.store, work.iteration, work.recipe.rewards.reward_model is not None
    endpoint, folder = deployment.judge_endpoint(), store.path(layout.JUDGE_SERVER)
    drawing = work.recipe.samples is not None
    with judge_at(work.recipe.rewards.judge if drawing else None, endpoint, folder) as judge:
        fresh: FreshSamples = sample(
            work,
            reward_labels.dataset,
            lambda: held_apart(work, reward_labels.dataset, datetime.now(UTC)),
            lambda: consented(store, work.lake, iteration.dataset),
            lambda section: open_engine(
                section.serving,
                environment().serving,
                work.log,
                store.path(layout.SAMPLE_SERVING),
                where="samples.serving",
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
        "distinct share": fresh.distinct,
        "USD": fresh.usd,
        "rewards": picture(plots.reward_distribution(fresh.histogram, fresh.mean_reward), "Rewards of the samples"),
        "coverage and reasons": picture(plots.coverage(fresh.labelled, fresh.unlabelled), "Scored, and why not"),
        **table_facts(fresh.dataset.rows, fresh.dataset.uri, SAMPLES),
    }
    yield output(fresh, fresh.dataset.digest, metadata)
