"""The traces stage: production traces in, a governed table and the iteration's identity out."""

from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.days import GOVERNED, governed_days, tell_of_days
from assets.loop_asset import loop_asset
from assets.metadata import output, picture, table, table_facts
from assets.observations import show_figures, tell_of_champion
from assets.preflight import stages_of
from assets.records import TRACES, begin, goes_on, outcome
from assets.resources import Deployment
from assets.rollout import follow_rollout
from evals.freezing import refuse_without_references
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.demo import suite as demo_suite
from pipeline.demo.traffic import ensure_days
from pipeline.recipe.pinning import pin
from pipeline.recipe.sources import DemoSource
from pipeline.recipe.suites import ItemsSuite
from pipeline.rollout.fold import in_rollout, read_state
from pipeline.rollout.propose import in_training_way
from pipeline.serving.transformers_engine import sampler
from pipeline.traces.lake.catalogue import NAME, NAMESPACE
from pipeline.traces.materialize import materialize
from pipeline.traces.records import GovernedTraces
from pipeline.traces.rows import SCHEMA
from pipeline.traces.scope import Producer, version_names
from pipeline.traces.sources.protocol import address_of
from pipeline.traces.unrendered import refuse_unrendered_rows
from pipeline.traces.watermark import nothing_counts, rejected_samples
from pipeline.views.iteration import funnel


@loop_asset(
    "traces",
    {"iceberg", "python"},
    "pipeline/traces",
    output_required=False,
    checks={
        "every_row_accounted_for": "seen = admitted + rejected.",
    },
)
def traces(context: dg.AssetExecutionContext, deployment: Deployment):
    """Production traces that may be learned from, in an Iceberg table; absent when there is nothing new."""
    recipe, store = deployment.recipe(), deployment.store()
    may_train = "policy_checkpoint" in stages_of(context) and recipe.rollout.traffic.kind != "none"
    if may_train and read_state(store, recipe.base_model.name).active:
        rollout = follow_rollout(deployment, context.log.info, recipe.rollout.drive_for_s)
        tell_of_champion(context, deployment)
        show_figures(context, deployment, rollout.opened.version.iteration)
        if why := in_training_way(rollout):
            context.log.warning(f"No iteration is begun while a rollout is open: {why}")
            yield dg.AssetCheckResult(check_name="every_row_accounted_for", passed=True, description="nothing was read")
            return
    champion = deployment.champion()
    source = recipe.traces.source
    if isinstance(source, DemoSource):
        log = context.log.info
        with sampler(log) as sample:
            ensure_days(store.path(layout.PRODUCTION), champion.model, source, sample, log)
    for suite in recipe.evaluation.suites:
        if isinstance(suite, ItemsSuite) and suite.embedded:
            demo_suite.ensure_suite(store, suite, recipe.evaluation.seed)
    name = recipe.base_model.name
    canaries = in_rollout(store, name)
    kept_out = frozenset[str]().union(*(version_names(name, digest, canaries[digest]) for digest in canaries))
    producer = Producer(champion.model, name, champion.version, champion.since, kept_out)
    result = materialize(
        deployment.stage(context.log.info),
        address_of(recipe.traces, deployment.source_uri()),
        producer,
        champion.promotions,
        datetime.now(UTC),
    )
    tell_of_days(context, GOVERNED, governed_days(result))
    rejected = {str(reason): count for reason, count in result.rejected.items()}
    yield dg.AssetCheckResult(
        check_name="every_row_accounted_for",
        passed=result.seen == result.admitted + sum(rejected.values()),
        description=f"{result.seen} rows seen, {result.admitted} admitted, {sum(rejected.values())} rejected",
    )
    if (begun := goes_on(store, champion.model, recipe)) is not None:
        context.log.info(f"goes on with iteration {begun.id}; what is newer than its traces is for the next one")
        pin(store, begun, recipe)
        governed = TRACES.read(store, begun.id)
        yield output(governed, begun.dataset.digest, _shown(store, governed))
        return
    if not result.iteration.dataset.rows:
        context.log.info(nothing_counts(result, deployment.lake(), recipe.traces, producer))
        return
    ended = outcome(store, result.iteration)
    if ended is not None:
        context.log.info(f"Nothing new since iteration {result.iteration.id} ({ended.ending}: {ended.detail})")
        return
    for refuse in (refuse_unrendered_rows, refuse_without_references):
        refuse(deployment.stage(context.log.info), result.iteration)
    pin(store, result.iteration, recipe)
    begin(store, result.iteration)
    governed = store.once(result.iteration.path(layout.GOVERNED), GovernedTraces, lambda: result)
    context.log.info(f"iteration {governed.iteration.id}: {governed.admitted} of {governed.seen} rows admitted")
    yield output(governed, governed.iteration.dataset.digest, _shown(store, governed))


def _shown(store: Store, governed: GovernedTraces) -> dict[str, Any]:
    """What a person looks for: where the rows went, day by day, what was read, and samples of what stayed out."""
    rejected = {str(reason): count for reason, count in governed.rejected.items()}
    days = [
        (d.day, d.seen, d.admitted, ", ".join(f"{n} {why}" for why, n in d.rejected.items()),
         f"{sum(f.bytes for f in d.files) / 1e6:.1f}")
        for d in governed.days
    ]  # fmt: skip
    samples = rejected_samples(store, [day.day for day in governed.days])
    return {
        "iteration": governed.iteration.id,
        "seen": governed.seen,
        "admitted": governed.admitted,
        "in the dataset": governed.iteration.dataset.rows,
        "gates": picture(funnel(governed.seen, rejected, governed.admitted), "Funnel of the gates"),
        "days": table(["day", "seen", "admitted", "rejected", "MB read"], days),
        "rejected, for example": table(["reason", "what was seen", "where"], samples),
        "dagster/table_name": f"{NAMESPACE}.{NAME}",
        **table_facts(governed.iteration.dataset.rows, governed.iteration.dataset.uri, SCHEMA),
    }
