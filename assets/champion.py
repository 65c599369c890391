"""The champion on Dagster's pages: the asset `champion`, with a materialisation for each model that came to serve.

Nothing makes it: runs of the rollout tell of it when the record has another champion than the page. So its freshness is
that of what serves, where a version that was registered and refused would count as fresh. The base model, which serves
before the first promotion, is not told.
"""

from datetime import timedelta
from typing import Any

import dagster as dg

from assets.metadata import VERSION_TAG
from assets.naming import asset_key
from assets.resources import Deployment
from pipeline.recipe import Automation
from pipeline.registry.runs import version_page

CHAMPION = "champion"


def champion_asset(prefix: str | None, section: Automation) -> dg.AssetSpec:
    days = section.champion_max_age_days
    return dg.AssetSpec(
        asset_key(CHAMPION, prefix),
        deps=[asset_key("canary", prefix)],
        description="The model that serves: the last one that a rollout promoted.",
        group_name="registry",
        kinds={"mlflow"},
        owners=["team:ml-platform"],
        freshness_policy=None if days is None else dg.FreshnessPolicy.time_window(timedelta(days=days)),
    )


def tell_of_champion(context: dg.OpExecutionContext, deployment: Deployment) -> None:
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
