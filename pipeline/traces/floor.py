"""The floor under the admitted share of a source, below which the source or its kind is wrong."""

from collections.abc import Collection, Iterable

from pipeline.recipe.formats import formats
from pipeline.recipe.traces import Traces
from pipeline.traces.detect import wrong_kind
from pipeline.traces.records import DayReport, Reason, total

NO_EVIDENCE = (
    *(Reason.ERASED, Reason.NOT_GENERATION, Reason.SUPERSEDED),
    *(Reason.INTERMEDIATE, Reason.HELPER, Reason.DUPLICATE, Reason.NO_PREFERENCE),
)
"""Rows that could not have been admitted, and speak against no source."""


def refuse_below_floor(label: str, reports: Iterable[DayReport], calls: Collection[str], settings: Traces) -> None:
    """Raises ValueError that says what was admitted of the parts `calls`, what was not, and what to do."""
    files = [file for report in reports for file in report.files if file.name in calls]
    seen, admitted = sum(file.seen for file in files), sum(file.admitted for file in files)
    rejected, floor = total(file.rejected for file in files), settings.min_admitted_share
    eligible = seen - sum(rejected.get(reason, 0) for reason in NO_EVIDENCE)
    if not floor or seen == rejected.get(Reason.ERASED, 0) or (admitted and admitted >= floor * eligible):
        return
    most = sorted(rejected.items(), key=lambda item: -item[1])[:4]
    section = settings.imported.get(label, settings.source)
    place = "traces.imports" if label in settings.imported else "traces.source"
    preset = formats().get(getattr(section, "preset", None) or "")
    mend = f"Mend {place} (its kind is {section.kind}), the keys and regions of traces."
    wrong = wrong_kind(section) or f"{mend} {preset.note if preset else ''}".strip()
    raise ValueError(
        f"{label}: {admitted:,} of {eligible or seen:,} rows admitted, under the floor of {100 * floor:g}%. Rejected: "
        f"{', '.join(f'{reason} {count:,}' for reason, count in most)}. Nothing was published. {wrong} "
        f"Or lower traces.min_admitted_share ({floor:g})."
    )
