"""Days on Dagster's pages: `governed_days` and `labelled_days`, with a partition for each day of traces, which the
stages report. The assets of the loop have no partitions: a launch would have to name one."""

from collections.abc import Iterable
from typing import NamedTuple

import dagster as dg
import pyarrow.parquet as pq

from assets.metadata import VERSION_TAG
from assets.naming import owner_of
from pipeline.core.storage import digest_json
from pipeline.rewards.records import RewardLabels
from pipeline.traces.records import UNKNOWN_DAY, GovernedTraces

GOVERNED, LABELLED, DAYS = "governed_days", "labelled_days", "days"
PAGE = 1000
"""Events that are looked through for what was told of days."""


class DayOnPage(NamedTuple):
    """`version` changes when what is shown of the day may be different."""

    day: str
    version: str
    figures: dict[str, float | int]


def days(prefix: str | None) -> list[dg.AssetSpec]:
    return [
        dg.AssetSpec(
            name,
            deps=[stage],
            description=description,
            group_name=group,
            kinds={"parquet"},
            owners=[owner_of(group)],
            partitions_def=dg.DynamicPartitionsDefinition(name=f"{prefix}__{DAYS}" if prefix else DAYS),
        )
        for name, stage, group, description in (
            (GOVERNED, "traces", "traces", "Each governed day: rows seen, admitted, rejected."),
            (LABELLED, "reward_labels", "rewards", "Each day of the newest labels: rows, labels, mean reward."),
        )
    ]


def governed_days(traces: GovernedTraces) -> list[DayOnPage]:
    return [
        DayOnPage(each.day, each.digest, {"dagster/partition_row_count": each.admitted, "seen": each.seen})
        for each in traces.days
        if each.day != UNKNOWN_DAY
    ]


def labelled_days(labels: RewardLabels) -> list[DayOnPage]:
    table = pq.read_table(labels.dataset.uri, columns=["day", "final_reward"])
    grouped = table.group_by("day").aggregate([("final_reward", "count"), ("final_reward", "mean"), ("day", "count")])
    days: list[DayOnPage] = []
    for row in grouped.to_pylist():
        if row["day"] == UNKNOWN_DAY:
            continue
        figures = {"dagster/partition_row_count": row["day_count"], "labelled": row["final_reward_count"]}
        if row["final_reward_mean"] is not None:
            figures["mean reward"] = row["final_reward_mean"]
        days.append(DayOnPage(row["day"], digest_json(figures), figures))
    return sorted(days)


def tell_of_days(context: dg.AssetExecutionContext, asset: str, days: Iterable[DayOnPage]) -> None:
    """A materialisation for each day that is new, or has another version than its newest one."""
    *prefix, _ = context.asset_key.path
    key, listed = dg.AssetKey([*prefix, asset]), {each.day: each for each in days}
    if not listed:
        return
    context.instance.add_dynamic_partitions("__".join((*prefix, DAYS)), list(listed))
    versions = _shown_versions(context, key, listed)
    for day, each in listed.items():
        if versions.get(day) != each.version:
            context.log_event(
                dg.AssetMaterialization(key, partition=day, metadata=each.figures, tags={VERSION_TAG: each.version})
            )


def _shown_versions(context: dg.AssetExecutionContext, key: dg.AssetKey, days: Iterable[str]) -> dict[str, str]:
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=list(days))
    versions: dict[str, str] = {}
    for record in context.instance.fetch_materializations(wanted, limit=PAGE).records:  # the newest first
        shown = record.asset_materialization
        if shown is not None and shown.partition is not None:
            versions.setdefault(shown.partition, (shown.tags or {}).get(VERSION_TAG, ""))
    return versions
