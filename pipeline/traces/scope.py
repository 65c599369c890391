"""Which rows of its days a dataset holds: those that count for the champion which an iteration starts from.

A policy learns from what it said itself: rows of the models before it are off-policy, and with the same rows after
every promotion the loop would train without anything new. Owns the recipe's three rules (`traces.attribution`) and what
they come to, row by row. Refuses to publish a dataset: `materialize` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.storage import ModelRef
from pipeline.recipe.traces import Attribution
from pipeline.traces.lake import Lake
from pipeline.traces.pii.columns import mask_column
from pipeline.traces.records import DayReport, Scope
from pipeline.traces.rows import SCHEMA


class Producer(NamedTuple):
    """The champion, as its traces may know it."""

    model: ModelRef
    name: str
    """Registered name."""
    version: int = 0
    """0: the base model."""
    since: datetime | None = None
    """When it was promoted; None for the base model, and where nobody knows."""
    kept_out: frozenset[str] = frozenset()
    """Names of models whose rows nothing learns from: a canary's while its rollout runs, and for good when it was taken
    back. What such a model said would be preferred for having been said."""

    @property
    def names(self) -> frozenset[str]:
        """What its traces may give as their model. The plain name is every version's: it tells the base model alone."""
        names = version_names(self.name, self.model.digest, self.version) | {self.model.uri}
        return names if self.version else names | {self.name}


def version_names(model_name: str, digest: str, version: int) -> frozenset[str]:
    """What traces may give as their model when this version answered; `version` 0 is the base model."""
    names = {f"{model_name}@{digest[:12]}", f"champion-{digest[:12]}", digest}
    if version:
        names |= {f"{model_name}{sign}{version}" for sign in ("/", ":", "-v")} | {f"models:/{model_name}/{version}"}
    return frozenset(names)


class CountedDay(NamedTuple):
    """A day that has rows which count: how many, and which."""

    report: DayReport
    rows: int
    scope: Scope

    @property
    def whole(self) -> bool:
        return self.rows == self.report.admitted


def count(
    lake: Lake, rule: Attribution, producer: Producer, reports: Iterable[DayReport], size: int
) -> tuple[CountedDay, ...]:
    """The newest `size` days that have rows which count, the oldest first.

    A scope names no model that its day does not have, so it depends on what is in the table alone.
    """
    filled = [report for report in reports if report.admitted]
    names, kept_out = _as_stored(producer.names), _as_stored(producer.kept_out)
    models = lake.models([report.day for report in filled]) if rule == "model" or kept_out else {}
    counted_days: list[CountedDay] = []
    for report in reversed(filled):
        if len(counted_days) == size:
            break
        counted = CountedDay(report, report.admitted, Scope())
        if rule == "model":
            ours = {model: rows for model, rows in models.get(report.day, {}).items() if model in names}
            counted = CountedDay(report, sum(ours.values()), Scope(models=tuple(sorted(ours))))
        elif rule == "promoted" and producer.since is not None:
            counted = _newer(lake, report, producer.since)
        if without := tuple(sorted(kept_out & set(models.get(report.day, {})) - set(counted.scope.models))):
            counted = _without(lake, counted, without)
        if counted.rows:
            counted_days.append(counted)
    return tuple(reversed(counted_days))


def scope_of(days: Sequence[CountedDay]) -> Scope:
    """The one scope that all of the days are read by."""
    if all(day.whole for day in days):
        return Scope()
    models, without = ({m for day in days for m in getattr(day.scope, field)} for field in ("models", "without"))
    return Scope(models=tuple(sorted(models)), after=days[0].scope.after, without=tuple(sorted(without)))


def identity(days: Sequence[CountedDay]) -> list[list[object]]:
    """What the digest of a dataset is made of. A day whose rows all count is known by its own digest."""
    return [[day.report.day, day.report.digest, *([] if day.whole else [_as_identity(day.scope)])] for day in days]


def _as_identity(scope: Scope) -> dict[str, object]:
    """The scope as it was identified before rows could be left out by model, where none are."""
    tree = scope.model_dump(mode="json")
    return tree if scope.without else {name: value for name, value in tree.items() if name != "without"}


def where(scope: Scope) -> pc.Expression | None:
    """Whether a row of the governed table is in the scope; None: every row is."""
    condition: pc.Expression | None = None
    if scope.models:
        condition = pc.field("model").isin(pa.array(scope.models, pa.string()))
    if scope.after is not None:
        newer = pc.field("timestamp") > pa.scalar(scope.after, SCHEMA.field("timestamp").type)
        condition = newer if condition is None else condition & newer
    if scope.without:
        others = ~pc.field("model").isin(pa.array(scope.without, pa.string()))
        condition = others if condition is None else condition & others
    return condition


def _without(lake: Lake, counted: CountedDay, models: tuple[str, ...]) -> CountedDay:
    """The day without the rows of some models."""
    scope = counted.scope.model_copy(update={"without": models})
    condition = where(scope)
    assert condition is not None, "it names models"
    return counted._replace(rows=sum(lake.count(condition, [counted.report.day]).values()), scope=scope)


def _newer(lake: Lake, report: DayReport, since: datetime) -> CountedDay:
    """Only the day of the promotion itself has to be looked into."""
    scope, day = Scope(after=since), since.date().isoformat()
    condition = where(scope)
    assert condition is not None, "it has a time"
    rows = report.admitted if report.day > day else 0
    if report.day == day:
        rows = sum(lake.count(condition, [day]).values())
    return CountedDay(report, rows, scope)


def _as_stored(names: Iterable[str]) -> frozenset[str]:
    """The names as the table has them: masked like any text."""
    return frozenset(mask_column(pa.array(sorted(names), pa.string()))[0].to_pylist())
