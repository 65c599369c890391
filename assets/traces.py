"""The traces stage: production traces in, a governed table and the iteration's identity out."""

import dagster as dg

from assets import pictures
from assets.outcome import outcome
from assets.resources import Deployment
from pipeline.demo.traffic import ensure_days
from pipeline.recipe import DemoSource
from pipeline.serving.sample import sampler
from pipeline.traces.materialize import materialize
from pipeline.traces.records import GovernedTraces


@dg.asset(
    group_name="traces",
    kinds={"iceberg", "python"},
    owners=["team:ml-platform"],
    output_required=False,
    check_specs=[dg.AssetCheckSpec("every_row_accounted_for", asset="traces", blocking=True)],
)
def traces(context: dg.AssetExecutionContext, deployment: Deployment):
    """Production traces that may be learned from, in an Iceberg table; absent when there is nothing new."""
    recipe, store = deployment.recipe(), deployment.store()
    champion = deployment.champion()
    source = recipe.traces.source
    if isinstance(source, DemoSource):
        export = ensure_days(
            store.path("production"),
            champion.model,
            days=source.days,
            traces_per_day=source.traces_per_day,
            seed=source.seed,
            sample=sampler(context.log.info),
            log=context.log.info,
        )
        export_uri = str(export)
    else:
        export_uri = source.uri
    found = materialize(
        store,
        source,
        recipe.traces,
        export_uri=export_uri,
        champion=champion.model,
        model_name=recipe.base_model.name,
        number=champion.promotions,
        recipe_digest=recipe.digest(),
        log=context.log.info,
    )
    rejected = {str(reason): count for reason, count in found.rejected.items()}
    yield dg.AssetCheckResult(
        check_name="every_row_accounted_for",
        passed=found.seen == found.admitted + sum(rejected.values()),
        description=f"{found.seen} rows seen, {found.admitted} admitted, {sum(rejected.values())} rejected",
    )
    ended = outcome(store, found.iteration)
    if ended is not None:
        context.log.info(f"Nothing new since iteration {found.iteration.id} ({ended.ending}: {ended.detail})")
        return
    governed = store.once(found.iteration.path("traces.json"), GovernedTraces, lambda: found)
    context.log.info(f"iteration {governed.iteration.id}: {governed.admitted} of {governed.seen} rows admitted")
    days = [(d.day, d.seen, d.admitted, d.seen - d.admitted) for d in governed.days]
    yield dg.Output(
        governed,
        metadata={
            "iteration": governed.iteration.id,
            "seen": governed.seen,
            "admitted": governed.admitted,
            "gates": pictures.shown(pictures.funnel(governed.seen, rejected, governed.admitted), "Funnel of the gates"),
            "rejected": pictures.table(["reason", "rows"], sorted(rejected.items())),
            "days": pictures.table(["day", "seen", "admitted", "rejected"], days),
            "champion": champion.model.digest[:12],
            "snapshot": governed.iteration.dataset.snapshot,
            "digest": governed.iteration.dataset.digest,
            "table": dg.MetadataValue.path(governed.iteration.dataset.uri),
        },
    )
