"""The end of an iteration, and what Dagster shows of it and of a look at the rollout. What is shown fails no stage."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from assets.kpi import HEAD, Kpi, read_kpi
from assets.metadata import VERSION_TAG, picture, table
from assets.records import Ending, conclude
from assets.report import write_report
from assets.resources import Deployment
from assets.rollout import read_status
from pipeline.core.iteration import Iteration
from pipeline.core.storage import digest_json
from pipeline.governance.erasure import blocked_iteration
from pipeline.recipe import Automation
from pipeline.registry.runs import version_page
from pipeline.views.iteration import quality_and_cost
from pipeline.views.rollout import RolloutStatus

KPI, CHAMPION = "kpi", "champion"
"""Assets that nothing makes. The first is observed at an iteration's end, also where it was refused; of the second runs
of the rollout tell, when the record has another champion than the page."""


def end(
    context: dg.AssetExecutionContext, deployment: Deployment, iteration: Iteration, ending: Ending, detail: str
) -> None:
    conclude(deployment.store(), iteration, ending, detail)
    show_figures(context, deployment, iteration.id)


def refuse_blocked(deployment: Deployment, iteration: Iteration) -> None:
    """Raises dagster.Failure, which no retry cures, where an erasure took data of the iteration away; what it has made
    by now is tagged in MLflow and in the proof then."""
    store = deployment.store()
    reason = blocked_iteration(store, deployment.registry_uri(), iteration, datetime.now(UTC))
    if reason:
        conclude(store, iteration, "refused", reason)
        raise dg.Failure(reason, allow_retries=False)


def show_figures(context: dg.OpExecutionContext | dg.AssetExecutionContext, deployment: Deployment, id: str) -> None:
    try:
        store, recipe = deployment.store(), deployment.recipe()
        page = write_report(store, recipe, id, time.time())
        context.log_event(kpi_observation(deployment.key(KPI), read_kpi(store, recipe), str(page)))
    except Exception as error:  # boundary: a picture of what has ended well
        context.log.warning(f"The key figures are not shown: {error!r}. pt report {id} makes the page.")


def tell_of_rollout(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Where the rollout is now, after a look or a decision."""
    report = read_status(deployment)
    if (proposal := report.state.proposal) is not None:  # with the version of the asset's own output
        tags = {VERSION_TAG: digest_json([report.state.rollout, proposal.version.model.digest])}
        context.log_event(dg.AssetMaterialization(deployment.key("canary"), None, rollout_metadata(report), tags=tags))


def rollout_metadata(report: RolloutStatus) -> dict[str, Any]:
    """Where it is, and the figures that Dagster draws over time."""
    state, watch = report.state, report.state.watch
    figures: dict[str, float] = {"canary weight in percent": report.weight, "looks": watch.looks}
    for name, arm in (("champion", watch.evidence.champion), ("canary", watch.evidence.canary)):
        figures[f"{name} requests"] = arm.requests
        shares = {"right": arm.quality, "errors": arm.errors, "slow": arm.slow}
        figures |= {f"{name} {what} in percent": round(100 * s.share, 2) for what, s in shares.items() if s.trials}
    shown: dict[str, Any] = {"phase": str(state.phase), "why": state.reason, "waits for": report.waits_for}
    return shown | {name: dg.MetadataValue.float(float(value)) for name, value in figures.items()}


def kpi_asset() -> dg.AssetSpec:
    return dg.AssetSpec(
        KPI,
        deps=["policy_checkpoint", "model_version", "canary"],
        group_name="registry",
        kinds={"python"},
        owners=["team:ml-platform"],
        description="What the loop gives and what it costs, over all iterations: an observation at each one's end, and "
        "at the end of each run of a rollout. The same as a page: pt report.",
    )


def kpi_observation(key: dg.AssetKey, kpi: Kpi, page: str) -> dg.AssetObservation:
    """`page`: where the newest page lies."""
    wide = (HEAD, *(each.row for each in reversed(kpi.iterations)))
    head, *rows = ((*row[:2], *row[7:9]) for row in wide)  # as many columns as the page has room for
    shown: dict[str, dg.MetadataValue] = {
        "iterations": table(head, rows),
        "quality and cost": picture(quality_and_cost(kpi.bars()), "Quality and cost"),
        "page": dg.MetadataValue.path(page),
        "not in the cost": dg.MetadataValue.text("; ".join(kpi.bill.unknown) or "nothing"),
    }
    figures = {name: dg.MetadataValue.float(value) for name, value in _figures(kpi) if value is not None}
    return dg.AssetObservation(key, metadata={**shown, **figures})


def _figures(kpi: Kpi) -> Iterator[tuple[str, float | None]]:
    newest = kpi.iterations[-1] if kpi.iterations else None
    per, waited = kpi.bill.for_hundredth(kpi.gain), kpi.trace_to_promotion_s
    yield "champion right in percent", _percent(kpi.champion_quality.value if kpi.champion_quality else None)
    yield "gained points", _percent(kpi.gain)
    yield "USD at least", round(kpi.bill.usd.low, 4)
    yield "device hours at least", round(kpi.bill.device_hours, 4)
    yield "USD for each +0.01 at least", round(per.low, 4) if per else None
    yield "traces kept in percent", _percent(newest.kept if newest else None)
    yield "label coverage in percent", _percent(newest.coverage if newest else None)
    yield "refused", float(kpi.ended["refused"])
    yield "rolled back", float(kpi.ended["rolled back"])
    yield "hours from newest trace to promotion", None if waited is None else round(waited / 3600, 2)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def champion_asset(section: Automation) -> dg.AssetSpec:
    days = section.champion_max_age_days
    return dg.AssetSpec(
        CHAMPION,
        deps=["canary"],
        description="The model that serves: the last one that a rollout promoted.",
        group_name="registry",
        kinds={"mlflow"},
        owners=["team:ml-platform"],
        freshness_policy=None if days is None else dg.FreshnessPolicy.time_window(timedelta(days=days)),
    )


def tell_of_champion(context: dg.OpExecutionContext | dg.AssetExecutionContext, deployment: Deployment) -> None:
    key, champion = deployment.key(CHAMPION), deployment.champion()
    last = context.instance.get_latest_materialization_event(key)
    shown = last.asset_materialization if last is not None else None
    if not champion.version or (shown and (shown.tags or {}).get(VERSION_TAG) == champion.model.digest):
        return
    name = deployment.recipe().base_model.name
    metadata: dict[str, Any] = {
        "name": name,
        "version": champion.version,
        "model digest": champion.model.digest,
        "since": str(champion.since),
        "model": dg.MetadataValue.path(champion.model.uri),
    }
    if page := version_page(deployment.registry_uri(), name, champion.version):
        metadata["version in MLflow"] = dg.MetadataValue.url(page)
    context.log_event(dg.AssetMaterialization(key, metadata=metadata, tags={VERSION_TAG: champion.model.digest}))
