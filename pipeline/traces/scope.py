"""Which rows of its days a dataset holds, by the recipe's rule (`traces.attribution`). Rows of earlier models are
off-policy, and with the same rows after every promotion the loop would learn nothing new."""

from collections.abc import Collection, Iterable
from datetime import date, datetime
from functools import cache, reduce
from operator import and_
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import layout
from pipeline.core.storage import DatasetRef, ModelRef, Store
from pipeline.recipe.sources import IMPORTS, MODELS
from pipeline.recipe.traces import Attribution
from pipeline.traces.erased import forgotten
from pipeline.traces.lake import Lake, LakeConfig, open_lake
from pipeline.traces.pii.columns import mask_column
from pipeline.traces.records import DayReport, Scope, Window
from pipeline.traces.rows import SCHEMA

CONSENT_COLUMNS = ("trace_id", "observation_id", "consent", "user_id")


class Producer(NamedTuple):
    """The champion, as its traces may name it."""

    model: ModelRef
    name: str
    """Registered name."""
    version: int = 0
    """0: the base model."""
    since: datetime | None = None
    """When it was promoted; None for the base model, and where it is unknown."""
    kept_out: frozenset[str] = frozenset()
    """Names of models whose rows nothing learns from: of a canary while its rollout runs, and of one taken back."""

    @property
    def names(self) -> frozenset[str]:
        """What its traces may give as their model. The plain name, which every version has, is the base model's."""
        names = version_names(self.name, self.model.digest, self.version) | {self.model.uri}
        return names if self.version else names | {self.name}


def version_names(model_name: str, digest: str, version: int) -> frozenset[str]:
    """What traces may give as their model when this version answered; `version` 0 is the base model."""
    names = {f"{model_name}@{digest[:12]}", f"champion-{digest[:12]}", digest}
    if version:
        names |= {f"{model_name}{sign}{version}" for sign in ("/", ":", "-v")} | {f"models:/{model_name}/{version}"}
    return frozenset(names)


class CountedDay(NamedTuple):
    report: DayReport
    rows: int

    @property
    def whole(self) -> bool:
        return self.rows == self.report.admitted


def scope_of(rule: Attribution, producer: Producer) -> Scope:
    """Which rows count by the rule, for this champion."""
    ours = _as_stored(producer.names) if rule == "model" else frozenset[str]()
    return Scope(
        models=tuple(sorted(ours)),
        after=producer.since if rule == "promoted" else None,
        without=tuple(sorted(_as_stored(producer.kept_out) - ours)),
    )


def count(lake: Lake, scope: Scope, reports: Iterable[DayReport], size: int) -> tuple[tuple[CountedDay, ...], Scope]:
    """The newest `size` days that have traces in the scope and every day with rows of imports, the oldest first; and
    the scope of these days alone."""
    condition, counted_days, traced = where(scope), list[CountedDay](), list[str]()
    for report in reversed([report for report in reports if report.admitted]):
        rows = 0
        if any(file.name.startswith(IMPORTS) for file in report.files):
            rows = lake.count(_imported(), [report.day]).get(report.day, 0)
        if len(traced) < size and not (scope.after and report.day < scope.after.date().isoformat()):
            all_rows = report.admitted if condition is None else lake.count(condition, [report.day]).get(report.day, 0)
            traced += [report.day] if all_rows > rows else []
            rows = all_rows
        if rows:
            counted_days.append(CountedDay(report, rows))
    if len(traced) == size and counted_days[-1].report.day < traced[-1]:  # days of imports lie before the window
        scope = scope.model_copy(update={"since": date.fromisoformat(traced[-1])})
    return tuple(reversed(counted_days)), scope


def identity(days: Iterable[CountedDay], scope: Scope) -> list[list[object]]:
    """What the digest of a dataset is made of. A day whose rows all count is known by its own digest."""
    rule = scope.model_dump(mode="json")
    return [[day.report.day, day.report.digest, *([] if day.whole else [rule])] for day in days]


def _imported() -> pc.Expression:
    return pc.field("model").isin(pa.array(MODELS, pa.string()))


def where(scope: Scope) -> pc.Expression | None:
    """Whether a row of the governed table is in the scope, or an import's; None: every row is."""
    conditions: list[pc.Expression] = []
    if scope.models:
        conditions.append(pc.field("model").isin(pa.array(scope.models, pa.string())))
    if scope.after is not None:
        conditions.append(pc.field("timestamp") > pa.scalar(scope.after, SCHEMA.field("timestamp").type))
    if scope.without:
        conditions.append(~pc.field("model").isin(pa.array(scope.without, pa.string())))
    if scope.since is not None:
        conditions.append(pc.field("day") >= pa.scalar(scope.since, pa.date32()))
    return reduce(and_, conditions) | _imported() if conditions else None


def _as_stored(names: Iterable[str]) -> frozenset[str]:
    """The names as the table has them: masked like any text."""
    return frozenset(mask_column(pa.array(sorted(names), pa.string()))[0].to_pylist())


def consented(store: Store, lake_config: LakeConfig, dataset: DatasetRef) -> frozenset[tuple[str, str]]:
    """(trace_id, observation_id) of the dataset's rows that may be trained on now. Call it inside `shared_lock`.
    Raises ValueError when the dataset is not in this store."""
    window = store.read(layout.window(dataset.digest), Window)
    if window is None:
        raise ValueError(f"{store.root} has no dataset {dataset.digest[:12]}. Materialise the traces again.")
    return agreed(store, lake_config, window.days, where(window.scope))


def agreed(
    store: Store, lake_config: LakeConfig, days: Collection[str], rows: pc.Expression | None = None
) -> frozenset[tuple[str, str]]:
    """The same of all that the table has of these days (of `rows` where they are given)."""
    entry_of = cache(forgotten(store).entry)  # the table has a user's id or the pseudonym of it: both are recognised
    kept: set[tuple[str, str]] = set()
    with open_lake(lake_config) as lake:
        for batch in lake.batches(days, lake.snapshot, CONSENT_COLUMNS, rows):
            table = pa.table(batch).filter(pc.field("consent"))
            for trace, observation, _, user in zip(*(table[name].to_pylist() for name in CONSENT_COLUMNS), strict=True):
                if entry_of(user) is None:
                    kept.add((trace, observation))
    return frozenset(kept)
