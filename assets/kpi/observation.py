"""The key figures as Dagster shows them: the asset `kpi`, observed at each iteration's end and materialised by nothing.

It is no stage: a refused iteration has figures too, and a stage below `canary` would not run for it.
"""

from collections.abc import Iterator

import dagster as dg

from assets.kpi.records import Kpi
from assets.kpi.texts import HEAD, bars, row
from assets.metadata import picture, table
from assets.naming import asset_key
from pipeline.views.iterations import quality_and_cost

KPI = "kpi"


def kpi_asset(prefix: str | None) -> dg.AssetSpec:
    return dg.AssetSpec(
        asset_key(KPI, prefix),
        deps=[asset_key(stage, prefix) for stage in ("policy_checkpoint", "model_version", "canary")],
        group_name="registry",
        kinds={"python"},
        owners=["team:ml-platform"],
        description="What the loop gives and what it costs, over all iterations: an observation at each one's end, and "
        "at the end of each run of a rollout. The same as a page: pt report.",
    )


def kpi_observation(key: dg.AssetKey, kpi: Kpi, page: str) -> dg.AssetObservation:
    """`key`: of the model's asset; `page`: where the newest page lies."""
    shown: dict[str, dg.MetadataValue] = {
        "iterations": table(HEAD, [row(each) for each in reversed(kpi.iterations)]),
        "quality and cost": picture(quality_and_cost(bars(kpi)), "Quality and cost"),
        "page": dg.MetadataValue.path(page),
        "not in the cost": dg.MetadataValue.text("; ".join(kpi.cost.unknown) or "nothing"),
    }
    figures = {name: dg.MetadataValue.float(value) for name, value in _figures(kpi) if value is not None}
    return dg.AssetObservation(key, metadata={**shown, **figures})


def _figures(kpi: Kpi) -> Iterator[tuple[str, float | None]]:
    newest = kpi.iterations[-1].data if kpi.iterations else None
    per, waited = kpi.cost.usd_for(kpi.gain), kpi.trace_to_promotion_s
    yield "champion right in percent", _percent(kpi.champion_quality.value if kpi.champion_quality else None)
    yield "gained points", _percent(kpi.gain)
    yield "USD at least", round(kpi.cost.usd.low, 4)
    yield "device hours at least", round(kpi.cost.device_hours, 4)
    yield "USD for each +0.01 at least", round(per.low, 4) if per else None
    yield "traces kept in percent", _percent(newest.kept if newest else None)
    yield "label coverage in percent", _percent(newest.coverage if newest else None)
    yield "goodput in percent", _percent(kpi.goodput)
    yield "interruptions", float(kpi.preemptions)
    yield "steps computed again", float(kpi.lost_steps)
    yield "refused", float(kpi.ended.get("refused", 0))
    yield "rolled back", float(kpi.ended.get("rolled back", 0))
    yield "hours from newest trace to promotion", None if waited is None else round(waited / 3600, 2)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
