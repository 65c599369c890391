"""Which rows of its days a dataset holds, by the recipe's rule (`traces.attribution`). Rows of earlier models are
off-policy, and with the same rows after every promotion the loop would learn nothing new."""

from collections.abc import Iterable, Mapping, Sequence
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
    scope: Scope

    @property
    def whole(self) -> bool:
        return self.rows == self.report.admitted


def count(
    lake: Lake, rule: Attribution, producer: Producer, reports: Iterable[DayReport], size: int
) -> tuple[CountedDay, ...]:
    """The newest `size` days that have rows which count, the oldest first. A scope names only models of its day."""
    filled = [report for report in reports if report.admitted]
    names, kept_out = _as_stored(producer.names), _as_stored(producer.kept_out)
    models = lake.models([report.day for report in filled]) if rule == "model" or kept_out else {}
    counted_days: list[CountedDay] = []
    for report in reversed(filled):
        if len(counted_days) == size:
            break
        here = models.get(report.day, {})
        ours = names & here.keys() if rule == "model" else frozenset[str]()
        scope = Scope(
            models=tuple(sorted(ours)),
            after=producer.since if rule == "promoted" else None,
            without=tuple(sorted(kept_out & here.keys() - ours)),
        )
        rows = 0 if rule == "model" and not ours else _rows(lake, report, scope, here)
        if rows:
            counted_days.append(CountedDay(report, rows, scope))
    return tuple(reversed(counted_days))


def _rows(lake: Lake, report: DayReport, scope: Scope, models: Mapping[str, int]) -> int:
    """How many rows of a day are in the scope. Only the day of the promotion has to be read."""
    condition, since = where(scope), "" if scope.after is None else scope.after.date().isoformat()
    if condition is None or report.day < since:
        return 0 if report.day < since else report.admitted
    if report.day == since:
        return sum(lake.count(condition, [report.day]).values())
    if not scope.models and not scope.without:
        return report.admitted
    return sum(n for model, n in models.items() if model in (scope.models or models) and model not in scope.without)


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


def _as_stored(names: Iterable[str]) -> frozenset[str]:
    """The names as the table has them: masked like any text."""
    return frozenset(mask_column(pa.array(sorted(names), pa.string()))[0].to_pylist())
